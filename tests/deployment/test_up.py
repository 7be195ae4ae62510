"""`phaseserve up` as its user meets it: a request, what dies and comes back, what is refused, how it ends."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.system

FAKE = ("--engine", "fake", "--set", "replica.fake.delays=false")
MODEL = Path("smollm2-135m")


def pids_of(parent: int) -> list[int]:
    """Living children of a process."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
                if int(fields[1]) == parent and fields[0] != "Z":
                    found.append(int(entry.name))
    return found


def is_replica(pid: int) -> bool:
    return b"\0replica\0" in Path(f"/proc/{pid}/cmdline").read_bytes()


def eventually(check: Any, deadline_s: float = 30.0) -> None:
    deadline = time.monotonic() + deadline_s
    while not check():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.1)


def alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    return False


def run_up(*words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "cli", "up", *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)


def test_chat_through_two_roles_and_a_clean_end(start: Any) -> None:
    with start(MODEL, "--alternating", "1", "--mixed", "1", *FAKE, "--ask", "Hello?") as server:
        eventually(lambda: any("output tokens, TTFT" in line for line in server.log))
        answer = subprocess.run(
            [sys.executable, "-m", "cli", "chat", "--url", server.url, "--max-tokens", "5", "Hi"],
            capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
        assert "5 output tokens" in answer.stdout
        children = pids_of(server.process.pid)
        assert len(children) == 3
    assert server.process.returncode == 0
    assert not [pid for pid in children if alive(pid)]


def test_a_killed_replica_is_started_again_and_serves(start: Any) -> None:
    with start(MODEL, "--alternating", "1", *FAKE) as server:
        replica = next(pid for pid in pids_of(server.process.pid) if is_replica(pid))
        os.kill(replica, signal.SIGKILL)
        eventually(lambda: any("starting it again" in line for line in server.log))
        eventually(lambda: sum("joined (alternating)" in line for line in server.log) == 2)
        eventually(lambda: httpx.get(f"{server.url}/health/ready").status_code == 200)
        assert server.completion("again", max_tokens=3)["usage"]["completion_tokens"] <= 3


def test_a_replica_killed_again_before_it_is_ready_is_started_once_more(start: Any) -> None:
    with start(MODEL, "--alternating", "1", *FAKE) as server:
        killed: set[int] = set()

        def kill_next() -> bool:
            for pid in pids_of(server.process.pid):
                with contextlib.suppress(OSError):
                    if pid not in killed and is_replica(pid):
                        os.kill(pid, signal.SIGKILL)
                        killed.add(pid)
            return len(killed) == 3

        # Often the first one dies before `up` itself has seen the router ready.
        eventually(kill_next)
        eventually(lambda: sum("starting it again" in line for line in server.log) == 3)
        eventually(lambda: sum("joined (alternating)" in line for line in server.log) == 2)
        assert server.completion("again", max_tokens=3)["usage"]["completion_tokens"] <= 3


def test_a_folder_with_modules_of_our_names_is_no_matter(tmp_path: Path, tiny_model: Path) -> None:
    for name in ("cli", "replica", "router", "contracts", "engine"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('not ours')\n")
    script = Path(sys.executable).with_name("phaseserve")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = tmp_path / "log"
    with log.open("w") as out:
        words = [str(script), "up", "--model", str(tiny_model), "--port", str(port), "--alternating", "1", *FAKE]
        process = subprocess.Popen(words, cwd=tmp_path, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        eventually(lambda: "is ready on" in log.read_text() or process.poll() is not None, 60)
        assert process.poll() is None, log.read_text()
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(45) in {0, 1}


def test_children_do_not_outlive_a_killed_parent(start: Any) -> None:
    with start(MODEL, "--alternating", "1", *FAKE) as server:
        children = pids_of(server.process.pid)
        os.kill(server.process.pid, signal.SIGKILL)
        eventually(lambda: not any(alive(pid) for pid in children))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--alternating", "1", "--model", "/nowhere"), "/nowhere"),
        (("--alternating", "1", "--model", "gpt-17"), "gpt-17"),
        ((), "--alternating N"),
        (("--alternating", "-1"), "--alternating N"),
        (("--alternating", "1", "--set", "slo.ttft=1"), "ttft"),
        (("--alternating", "1", "--set", "slo.ttft_s=-1"), "slo.ttft_s"),
        (("--alternating", "1", "--set", "slo.tpot_s=nan"), "slo.tpot_s"),
        (("--alternating", "1", "--set", "slo.tpot_s=inf"), "slo.tpot_s"),
        (("--alternating", "1", "--set", "scheduling.kv_lease_max_s=inf"), "scheduling.kv_lease_max_s"),
        (("--mixed", "1", "--set", "transfer.silence_s=nan"), "transfer.silence_s"),
        (("--mixed", "1", "--set", "transfer.faults.delay_s=inf"), "transfer.faults.delay_s"),
        (("--alternating", "1", "--port", "0"), "port 0"),
        (("--alternating", "1", "--host", "203.0.113.7"), "203.0.113.7"),
        (("--alternating", "1", "--set", "scheduling.max_running=0"), "max_running"),
        (("--alternating", "1", "--set", "nonsense.a=1"), "nonsense"),
        (("--alternating", "1", "--set", "engine.kv_bytes=lots"), "kv_bytes"),
        (("--alternating", "1", "--config", "/nowhere.toml"), "/nowhere.toml"),
    ],
)
def test_wrong_words_are_refused_before_anything_starts(words: tuple[str, ...], says: str) -> None:
    done = run_up(*words)
    assert done.returncode == 2, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert "listening" not in done.stdout


def test_a_truncated_model_is_refused_by_file_and_reason(tiny_model: Path, tmp_path: Path) -> None:
    for file in tiny_model.iterdir():
        data = file.read_bytes()
        (tmp_path / file.name).write_bytes(data[: len(data) // 2] if file.suffix == ".safetensors" else data)
    done = run_up("--alternating", "1", "--model", str(tmp_path))
    assert done.returncode == 2
    assert "model.safetensors" in done.stderr
    assert "bytes" in done.stderr


def test_a_port_in_use_is_named_before_anything_starts() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = run_up("--alternating", "1", "--port", str(port), *FAKE)
    assert done.returncode == 2
    assert str(port) in done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert "r0" not in done.stdout

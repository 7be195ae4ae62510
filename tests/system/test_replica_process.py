"""One replica as a real process: streams, cancels, drains, signals, deaths; nothing left behind."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
from typing import Any

import pytest

from contracts import wire
from contracts.batch import SequenceStart
from contracts.request import FinishReason, SamplingParams
from contracts.views import ReplicaView
from engine.fake import FakeEngine, fake_layout, fake_spec

pytestmark = pytest.mark.system

SLOW_COST = {"a0": 0.02, "a1": 1e-3, "b0": 0.0, "b1": 0.0, "b2": 0.0, "b3": 0.0}


def idle(view: ReplicaView) -> bool:
    return view.running == 0 and view.waiting == 0 and view.free_blocks == view.num_blocks


def expected(prompt: tuple[int, ...], count: int) -> list[int]:
    spec = fake_spec(vocab_size=49152, max_context=8192)
    engine = FakeEngine(spec, fake_layout(spec), 1)
    start = SequenceStart("x", prompt, SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=count))
    return list(engine.expected_output(start, count))


async def ping_for_ever(router: Any) -> None:
    while True:
        await router.send(wire.Ping(nonce=1))
        await asyncio.sleep(0.1)


@pytest.mark.parametrize("role", ["alternating", "mixed"])
async def test_fifty_streams_get_exactly_their_tokens(start_replica: Any, connect_router: Any, role: str) -> None:
    replica = await start_replica(role=role)
    router = await connect_router(replica.endpoint)
    await router.send(wire.Lease(duration_s=60.0))
    prompts = {f"q{i}": tuple(range(i + 1, 7 * i + 3)) for i in range(50)}
    for request_id, prompt in prompts.items():
        await router.submit(request_id, prompt=prompt, max_tokens=8)
    for request_id, prompt in prompts.items():
        end = await router.wait_end(request_id, 60)
        assert end.finish is FinishReason.LENGTH
        assert end.usage is not None
        assert (end.usage.prompt_tokens, end.usage.output_tokens) == (len(prompt), 8)
        assert router.tokens(request_id) == expected(prompt, 8)
    await router.wait_view(idle)
    replica.signal(signal.SIGTERM)
    assert await replica.wait_exit() == 0
    num_prompt_tokens = sum(len(prompt) for prompt in prompts.values())
    assert f" {num_prompt_tokens} prompt and " in replica.log  # each prompt token was computed once


async def test_beside_running_streams_prompts_wait_for_a_lease(start_replica: Any, connect_router: Any) -> None:
    replica = await start_replica(role="alternating", fake={"cost": SLOW_COST})
    router = await connect_router(replica.endpoint)
    await router.submit("stream", max_tokens=5000)
    await router.wait_outputs("stream", 2)
    await router.submit("gives-up", prompt=range(200), max_tokens=4)
    await router.wait_view(lambda view: view.waiting == 1)
    await router.send(wire.Cancel(request_ids=("gives-up",)))  # cancelled while it waits
    assert (await router.wait_end("gives-up")).finish is FinishReason.CANCELLED
    await router.submit("waits", prompt=range(200), max_tokens=4)
    await router.wait_outputs("stream", 10)
    assert router.tokens("waits") == []
    await router.send(wire.Lease(duration_s=5.0))
    assert (await router.wait_end("waits")).finish is FinishReason.LENGTH
    await router.send(wire.Cancel(request_ids=("stream",)))
    await router.wait_view(idle)


async def test_cancel_during_prefill_and_decode_frees_every_block(start_replica: Any, connect_router: Any) -> None:
    replica = await start_replica(fake={"cost": SLOW_COST})
    router = await connect_router(replica.endpoint)
    await router.submit("long", prompt=range(3000), max_tokens=10)
    await router.wait_view(lambda view: view.free_blocks < view.num_blocks)
    await router.send(wire.Cancel(request_ids=("long",)))
    assert (await router.wait_end("long")).finish is FinishReason.CANCELLED
    await router.wait_view(idle)
    await router.submit("stream", max_tokens=2000)
    await router.wait_outputs("stream", 3)
    await router.send(wire.Cancel(request_ids=("stream",)))
    assert (await router.wait_end("stream")).finish is FinishReason.CANCELLED
    await router.wait_view(idle)
    replica.signal(signal.SIGTERM)
    assert await replica.wait_exit() == 0
    computed = re.search(r"(\d+) prompt and", replica.log)
    assert computed is not None
    assert int(computed[1]) < 3000  # it stopped at the end of a chunk, not of the prompt


async def test_sigterm_finishes_what_runs_and_refuses_the_rest(start_replica: Any, connect_router: Any) -> None:
    replica = await start_replica(fake={"cost": SLOW_COST})
    router = await connect_router(replica.endpoint)
    await router.submit("a", max_tokens=30)
    await router.wait_outputs("a", 1)
    replica.signal(signal.SIGTERM)
    await router.wait_view(lambda view: view.draining)
    await router.submit("late", max_tokens=2)
    assert (await router.wait(wire.Refused)).error.status == 503
    assert (await router.wait_end("a")).finish is FinishReason.LENGTH
    assert router.tokens("a") == expected((1, 2, 3), 30)
    assert "drained" in (await router.wait(wire.Goodbye)).reason
    assert await replica.wait_exit() == 0
    assert replica.stdout.read() == ""


async def test_sigterm_after_a_routers_drain_is_no_second_one(start_replica: Any, connect_router: Any) -> None:
    """K8S-4: whoever makes a pool smaller drains the replica first, and then its pod is told to end."""
    replica = await start_replica(fake={"cost": SLOW_COST})
    router = await connect_router(replica.endpoint)
    await router.submit("a", max_tokens=30)
    await router.wait_outputs("a", 1)
    await router.send(wire.Drain())
    await router.wait_view(lambda view: view.draining)
    replica.signal(signal.SIGTERM)
    assert (await router.wait_end("a")).finish is FinishReason.LENGTH
    assert router.tokens("a") == expected((1, 2, 3), 30)
    assert await replica.wait_exit() == 0


@pytest.mark.parametrize(
    "signals", [(signal.SIGINT,), (signal.SIGTERM, signal.SIGTERM)], ids=["interrupt", "terminate-twice"]
)
async def test_stopping_at_once_names_every_request(
    start_replica: Any, connect_router: Any, signals: tuple[signal.Signals, ...]
) -> None:
    replica = await start_replica(fake={"cost": SLOW_COST})
    router = await connect_router(replica.endpoint)
    await router.submit("a", max_tokens=2000)
    await router.wait_outputs("a", 1)
    for number in signals:
        replica.signal(number)
        await asyncio.sleep(0.2)
    end = await router.wait_end("a")
    assert end.error is not None
    assert end.error.status == 503
    await router.wait(wire.Goodbye)
    assert await replica.wait_exit(5) == 0


async def test_kill_is_silence_and_a_new_process_is_a_new_incarnation(start_replica: Any, connect_router: Any) -> None:
    replica = await start_replica()
    router = await connect_router(replica.endpoint)
    first = await router.hello()
    await router.submit("a", max_tokens=5000)
    await router.wait_outputs("a", 1)
    replica.signal(signal.SIGKILL)
    assert await replica.wait_exit() == -signal.SIGKILL
    await router.read_until_silence(0.5)
    port = int(replica.endpoint.rpartition(":")[2])
    again = await start_replica(port=port)
    assert again.endpoint == replica.endpoint
    welcome = await router.hello()  # the same socket: ZMQ connected it again
    assert welcome.identity.incarnation != first.identity.incarnation
    assert idle(welcome.view)


async def test_a_frozen_process_is_silent_and_goes_on_afterwards(start_replica: Any, connect_router: Any) -> None:
    replica = await start_replica(fake={"cost": SLOW_COST}, loop={"router_silence_s": 1.0})
    router = await connect_router(replica.endpoint)
    await router.submit("a", max_tokens=40)
    pinging = asyncio.create_task(ping_for_ever(router))
    await router.wait_outputs("a", 2)
    replica.signal(signal.SIGSTOP)
    await router.read_until_silence(1.5)
    replica.signal(signal.SIGCONT)
    assert (await router.wait_end("a")).finish is FinishReason.LENGTH
    await router.wait_view(idle)
    pinging.cancel()


async def test_routers_come_and_go_without_leaving_anything(start_replica: Any, connect_router: Any) -> None:
    replica = await start_replica(fake={"cost": SLOW_COST})
    stays = await connect_router(replica.endpoint)
    await stays.submit("warm", max_tokens=2)
    await stays.wait_end("warm")
    fds, threads = replica.fds, replica.threads
    for index in range(10):
        goes = await connect_router(replica.endpoint)
        await goes.submit(f"r{index}", max_tokens=5000)
        await goes.wait_outputs(f"r{index}", 1)
        goes.socket.close(linger=0)
    async with asyncio.timeout(10):
        while replica.fds > fds or not idle((await stays.hello()).view):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert replica.threads == threads
    replica.signal(signal.SIGTERM)
    assert await replica.wait_exit() == 0


async def test_the_process_ends_with_its_parent(tmp_path: Any) -> None:
    parent = (
        "import json, os, subprocess, sys\n"
        "config = {'replica_id': 'orphan', 'kind': 'fake', 'parent_pid': os.getpid()}\n"
        "child = subprocess.Popen([sys.executable, '-m', 'replica', json.dumps(config)], stdout=subprocess.PIPE)\n"
        "child.stdout.readline()\n"
        "print(child.pid)\n"
        "os._exit(0)\n"
    )
    words = [sys.executable, "-c", parent]
    done = await asyncio.to_thread(subprocess.run, words, stdout=subprocess.PIPE, timeout=30, check=True)
    pid = int(done.stdout)
    async with asyncio.timeout(10):
        while _is_running(pid):  # noqa: ASYNC110 - no event tells of it
            await asyncio.sleep(0.05)


def _is_running(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:  # noqa: PTH123
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"port": 70000}, "port"),
        ({"role": "boss"}, "role"),
        ({"loop": {"heartbeat_s": 0}}, "heartbeat_s"),
        ({"surprise": 1}, "surprise"),
        ({"kind": "torch", "engine": {"model": "/no/such/model"}}, "/no/such/model"),
    ],
    ids=["port", "role", "heartbeat", "unknown", "model"],
)
async def test_what_is_wrong_is_named_before_a_port_opens(
    start_replica: Any, settings: dict[str, Any], named: str
) -> None:
    replica = await start_replica(ready=False, **settings)
    assert await replica.wait_exit(60) == 2
    assert named in replica.log
    assert "Traceback" not in replica.log
    assert replica.stdout.read() == ""


async def test_a_port_in_use_is_named(start_replica: Any) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        replica = await start_replica(ready=False, port=port)
        assert await replica.wait_exit() == 2
    assert str(port) in replica.log


async def test_a_config_file_does_as_well(tmp_path: Any) -> None:
    path = tmp_path / "replica.toml"
    path.write_text('replica_id = "filed"\nkind = "fake"\nrole = "boss"\n')
    words = [sys.executable, "-m", "replica", os.fspath(path)]
    done = await asyncio.to_thread(subprocess.run, words, stderr=subprocess.PIPE, text=True, timeout=30, check=False)
    assert done.returncode == 2
    assert "boss" in done.stderr
    path = tmp_path / "replica.json"
    path.write_text(json.dumps({"replica_id": ""}))
    words[-1] = os.fspath(path)
    done = await asyncio.to_thread(subprocess.run, words, stderr=subprocess.PIPE, text=True, timeout=30, check=False)
    assert "replica_id" in done.stderr

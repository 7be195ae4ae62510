"""Who does not belong here: strangers on every port, members that do not fit, tickets that were used before."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from contracts import wire
from contracts.handoff import DecodeLeg, Peer, PrefillLeg
from contracts.request import FinishReason, Request, SamplingParams
from kvtransfer.config import TransferConfig
from kvtransfer.events import Unlinked
from kvtransfer.service import TransferService

pytestmark = pytest.mark.system

HELLO = b"phaseserve-auth-1"
RUBBISH = {
    "silence": b"",
    "http": b"GET / HTTP/1.1\r\nhost: x\r\n\r\n",
    "half a hello": (len(HELLO) + 60).to_bytes(4, "big") + HELLO,
    "a huge frame": b"\xff\xff\xff\xff" + HELLO,
    "a hello in our version": (len(HELLO) + 40).to_bytes(4, "big") + HELLO + bytes(40),
    "a wrong token": b"psb1" + bytes(32),
    "noise": os.urandom(4096),
}


@pytest.fixture(scope="module")
def pair(start_pools: Any) -> Iterator[Any]:
    with start_pools(p={}, d={}) as pools:
        yield pools


def ports_of(pid: int) -> list[int]:
    """Where a process listens: control, data plane, bulk."""
    inodes = set()
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            inodes.add(os.readlink(path).removeprefix("socket:[").removesuffix("]"))  # noqa: PTH115
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [int(row[1].partition(":")[2], 16) for row in rows if row[3] == "0A" and row[9] in inodes]


async def bother(port: int, rubbish: bytes) -> socket.socket | None:
    """Connect, say it, stay. None when the door stayed shut."""
    sock = socket.socket()
    sock.setblocking(False)
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(5.0):
            await loop.sock_connect(sock, ("127.0.0.1", port))
            await loop.sock_sendall(sock, rubbish)
    except (OSError, TimeoutError):
        sock.close()
        return None
    return sock


@pytest.mark.parametrize("count", [28, pytest.param(200, marks=pytest.mark.slow)])
async def test_strangers_on_every_port(pair: Any, checked: Any, count: int) -> None:
    """They are served nothing, they keep nobody out, and they are gone in the end even if they stay connected."""
    async with checked(pair) as pools:
        pids = [pools.fleet.members[name].process.pid for name in ("p", "d")]
        ports = [port for pid in pids for port in ports_of(pid)]
        assert len(ports) >= 6
        kinds = list(RUBBISH.values())
        socks = []
        for index in range(count):
            socks += [await bother(port, kinds[index % len(kinds)]) for port in ports]
        asked = [pools.ask(300, 16, on_unavailable="fail") for _ in range(8)]
        assert set(await pools.answers(*asked)) == {"length"}
        inside = [sock for sock in socks if sock is not None]
        assert len(inside) > count
        for sock in inside:
            sock.close()


@pytest.mark.slow
async def test_a_stranger_who_just_stays_is_shown_out(pair: Any, checked: Any) -> None:
    async with checked(pair) as pools:
        control = pools.fleet.members["d"].port
        ports = [port for port in ports_of(pools.fleet.members["d"].process.pid) if port != control]
        socks = [await bother(port, rubbish) for port in ports for rubbish in RUBBISH.values()]
        loop = asyncio.get_running_loop()
        for sock in socks:
            assert sock is not None
            with contextlib.suppress(ConnectionError):
                async with asyncio.timeout(12.0):
                    while await loop.sock_recv(sock, 4096):
                        pass
            sock.close()


@pytest.mark.slow
async def test_a_wrong_secret_is_no_member(pair: Any, checked: Any) -> None:
    """Whoever does not know the secret gets no link, even with the right words and the right fingerprint."""
    async with checked(pair) as pools:
        peer = await peer_of(pools, "d")
        events: list[Any] = []
        config = TransferConfig(enabled=True, host="127.0.0.1", secret=secrets.token_hex(16), transport="tcp")
        layout = peer.fingerprint.layout
        memory = memoryview(bytearray(4 * layout.num_layers * layout.block_bytes_per_layer))
        service = TransferService(config, ("p", "1", peer.fingerprint), memory, 4, events.append)
        service.start(5.0)
        try:
            service.set_peers([peer])
            async with asyncio.timeout(20.0):
                while not any(isinstance(event, Unlinked) for event in events):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        finally:
            service.close(5.0)
        assert {type(event) for event in events} == {Unlinked}
        assert set(await pools.answers(pools.ask(300, 16, on_unavailable="fail"))) == {"length"}


async def peer_of(pools: Any, name: str) -> Peer:
    shown = await asyncio.to_thread(pools.fleet.get, "/fleet")
    one = next(one for one in shown["replicas"] if one["replica_id"] == name)
    fields = {"replica_id": name, "incarnation": one["incarnation"], "endpoints": one["data_endpoints"]}
    return msgspec.convert({**fields, "fingerprint": one["fingerprint"]}, Peer)


async def test_a_ticket_is_of_use_once(pair: Any, checked: Any, connect_router: Any) -> None:
    """Sent again it is refused by name, whether its hand-off is over or still runs; the first one's answer is right."""
    async with checked(pair) as pools:
        ends = {name: f"tcp://127.0.0.1:{pools.fleet.members[name].port}" for name in ("p", "d")}
        p, d = await connect_router(ends["p"]), await connect_router(ends["d"])
        await p.send(wire.Peers(peers=(await peer_of(pools, "d"),)))
        params = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=6)
        prompt = pools.prompt(120)

        def request(name: str, leg: Any, tokens: tuple[int, ...] = prompt) -> wire.Submit:
            return wire.Submit(requests=(Request(request_id=name, prompt_token_ids=tokens, sampling=params, leg=leg),))

        await d.send(request("a", DecodeLeg(prefill_replica_id="p", expected_s=1.0, link_bytes_per_s=1e8)))
        ticket = (await d.wait(wire.Reserved)).ticket
        await p.send(request("a", PrefillLeg(ticket=ticket)))
        assert (await d.wait_end("a")).finish is FinishReason.LENGTH
        first = d.tokens("a")
        assert len(first) == 6
        for again in ("b", "c"):
            await p.send(request(again, PrefillLeg(ticket=ticket), pools.prompt(120)))
            assert await refusal_of(p, again) in ("kv_handoff_failed", "invalid_request")
        guessed = msgspec.structs.replace(ticket, ticket_id=secrets.token_hex(16))
        await p.send(request("guessed", PrefillLeg(ticket=guessed)))
        assert await refusal_of(p, "guessed") == "kv_handoff_failed"
        for client in (p, d):
            client.socket.close(linger=0)


async def refusal_of(client: Any, request_id: str) -> str:
    """How a request of a router ended, or was not even begun, by its error's code."""
    async with asyncio.timeout(20.0):
        while True:
            message = await client.read()
            if isinstance(message, wire.Refused) and message.request_id == request_id:
                return message.error.code
            for output in client.outputs(request_id):
                if output.finish is not None:
                    assert output.error is not None
                    return str(output.error.code)


@pytest.mark.slow
async def test_a_wrong_fingerprint_is_named_and_never_used(start_pools: Any) -> None:
    """Blocks of 24 tokens do not fit into blocks of 16: no link, and by the client's choice an error or another way."""
    with start_pools(p={"fake": {"block_size": 24}}, d={}) as pools:
        await pools.wait(lambda views: len(views) == 2)
        refused, helped = pools.ask(300, 16, on_unavailable="fail"), pools.ask(300, 16)
        assert await pools.answers(refused, helped) == ["unavailable", "length"]
        assert helped.layout == "colocated"
        assert all(map(pools.is_right, [helped]))
        shown = await asyncio.to_thread(pools.fleet.get, "/fleet")
        why_not = next(link["why_not"] for one in shown["replicas"] for link in one["links"])
        assert all(word in why_not for word in ("block_size", "16", "24"))
        await pools.wait_idle()

"""Two shells with real cores, fake engines and the real data plane: the test is their router, and nothing is left."""

from __future__ import annotations

import logging
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from contracts import wire
from contracts.batch import SequenceStart
from contracts.errors import ConfigError
from contracts.handoff import DecodeLeg, Peer, PrefillLeg
from contracts.kv import Fingerprint
from contracts.phase import Role
from contracts.request import FinishReason, Request, SamplingParams
from contracts.views import ReplicaIdentity, ReplicaView, StepCost
from engine.fake import FakeEngine, fake_layout, fake_spec
from kvtransfer.config import TransferConfig
from replica.config import ReplicaConfig
from replica.data_plane import data_plane
from scheduling.config import ReplicaCoreConfig
from scheduling.invariants import assert_nothing_left
from scheduling.replica_core import ReplicaCore

SPEC = fake_spec(vocab_size=100, max_context=1024)
LAYOUT = fake_layout(SPEC)
BLOCK_BYTES = LAYOUT.num_layers * LAYOUT.block_bytes_per_layer
COST = StepCost(a0=1e-3, a1=1e-5, b0=0.0, b1=0.0, b2=0.0, b3=0.0)
NUM_BLOCKS = 64
PARAMS = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=12)
PROMPT = tuple(range(50))


@dataclass
class Pair:
    """A prefill and a decode replica, with the test's connections to both."""

    giver: Any
    taker: Any
    to_giver: Any
    to_taker: Any

    async def start_leg(self, request_id: str, prompt: tuple[int, ...] = PROMPT, params: Any = PARAMS) -> Any:
        """Submit the decode leg; its ticket."""
        leg = DecodeLeg(prefill_replica_id="p", expected_s=0.5, link_bytes_per_s=1e8)
        await self.to_taker.send(
            wire.Submit(requests=(Request(request_id=request_id, prompt_token_ids=prompt, sampling=params, leg=leg),))
        )
        reserved = await self.to_taker.wait(wire.Reserved)
        assert reserved.request_id == request_id
        return reserved.ticket

    async def send_leg(
        self, request_id: str, ticket: Any, prompt: tuple[int, ...] = PROMPT, params: Any = PARAMS
    ) -> None:
        """Submit the prefill leg."""
        leg = PrefillLeg(ticket=ticket)
        await self.to_giver.send(
            wire.Submit(requests=(Request(request_id=request_id, prompt_token_ids=prompt, sampling=params, leg=leg),))
        )

    async def both_idle(self) -> None:
        await self.to_giver.wait_view(idle)
        await self.to_taker.wait_view(idle)


def idle(view: ReplicaView) -> bool:
    return view.running == view.waiting == view.sending == view.receiving == 0 and view.free_blocks == NUM_BLOCKS


def expected(prompt: tuple[int, ...], count: int) -> list[int]:
    return list(FakeEngine(SPEC, LAYOUT, NUM_BLOCKS).expected_output(SequenceStart("x", prompt, PARAMS), count))


def identity_of(replica_id: str) -> ReplicaIdentity:
    return ReplicaIdentity(
        replica_id=replica_id,
        incarnation=f"{replica_id} the first",
        version="0",
        model=SPEC,
        fingerprint=Fingerprint(model_digest="", layout=LAYOUT),
        num_blocks=NUM_BLOCKS,
        max_running=8,
        max_waiting=8,
    )


@pytest.fixture
async def pair(start_shell: Any, connect_router: Any) -> AsyncIterator[Pair]:
    transfer = TransferConfig(secret="only for this test", transport="tcp", host="127.0.0.1")
    async with AsyncExitStack() as planes:
        shells, identities = [], []
        for replica_id, role in (("p", Role.PREFILL), ("d", Role.DECODE)):
            engine = FakeEngine(SPEC, LAYOUT, NUM_BLOCKS)
            config = ReplicaConfig(replica_id=replica_id, role=role, transfer=transfer)
            plane = data_plane(config, engine, identity_of(replica_id))
            identity, moves = await planes.enter_async_context(plane)
            core = ReplicaCore(ReplicaCoreConfig(), role, LAYOUT, NUM_BLOCKS, 1024, SPEC.eos_token_ids, COST)
            shells.append(start_shell(core=core, engine=engine, identity=identity, transfer=moves))
            identities.append(identity)
        links = [await connect_router(shell.endpoint) for shell in shells]
        taker = identities[1]
        peer = Peer(
            replica_id="d",
            incarnation=taker.incarnation,
            endpoints=taker.data_endpoints,
            fingerprint=taker.fingerprint,
        )
        await links[0].send(wire.Peers(peers=(peer,)))
        await links[0].wait_view(lambda view: any(link.bytes_per_s for link in view.links))
        pair = Pair(*shells, *links)
        yield pair
        for shell in shells:
            shell.shutdown.drain("the test is over")
            assert "drained" in await shell.ended()
            assert_nothing_left(shell.core)
            assert shell.engine.faults == []


async def test_a_sequence_is_handed_over(pair: Pair) -> None:
    ticket = await pair.start_leg("a")
    await pair.send_leg("a", ticket)
    handed = await pair.to_giver.wait_end("a")
    assert handed.finish is FinishReason.HANDED_OVER
    assert (await pair.to_taker.wait_end("a")).finish is FinishReason.LENGTH
    assert list(handed.token_ids) == pair.to_taker.tokens("a")[:1]
    assert pair.to_taker.tokens("a") == expected(PROMPT, 12)
    view = await pair.to_taker.wait_view(idle)
    assert (view.kv_bytes_in, view.checksum_errors) == (LAYOUT.blocks_for(50) * BLOCK_BYTES, 0)
    assert view.prompt_tokens_computed == 0
    view = await pair.to_giver.wait_view(idle)
    assert (view.kv_bytes_out, view.prompt_tokens_computed) == (LAYOUT.blocks_for(50) * BLOCK_BYTES, 50)
    assert [(link.peer_id, link.transport, link.transfers) for link in view.links] == [("d", "tcp", 1)]


async def test_many_at_once_share_nothing(pair: Pair) -> None:
    names = [f"s{number}" for number in range(6)]
    prompts = {
        name: tuple((number * 31 + i) % 100 for i in range(40 + 37 * number)) for number, name in enumerate(names)
    }
    for name in names:
        await pair.send_leg(name, await pair.start_leg(name, prompts[name]), prompts[name])
    for name in names:
        assert (await pair.to_taker.wait_end(name)).finish is FinishReason.LENGTH
        assert pair.to_taker.tokens(name) == expected(prompts[name], 12)
    await pair.both_idle()


async def test_a_client_that_leaves_before_the_prefill_frees_the_receiver(pair: Pair) -> None:
    await pair.start_leg("a")
    await pair.to_taker.send(wire.Cancel(request_ids=("a",)))
    assert (await pair.to_taker.wait_end("a")).finish is FinishReason.CANCELLED
    await pair.to_taker.wait_view(idle)


async def test_a_receiver_that_is_cancelled_frees_the_sender(pair: Pair) -> None:
    ticket = await pair.start_leg("a")
    await pair.to_taker.send(wire.Cancel(request_ids=("a",)))
    await pair.to_taker.wait_end("a")
    await pair.send_leg("a", ticket)
    await pair.to_giver.wait_end("a")
    await pair.both_idle()


async def test_a_ticket_is_valid_once(pair: Pair) -> None:
    ticket = await pair.start_leg("a")
    await pair.send_leg("a", ticket)
    await pair.to_taker.wait_end("a")
    await pair.send_leg("again", ticket)
    end = await pair.to_giver.wait_end("again")
    assert end.finish in {FinishReason.ERROR, FinishReason.HANDED_OVER}
    assert pair.to_taker.tokens("a") == expected(PROMPT, 12)
    await pair.both_idle()


async def test_one_token_needs_no_hand_off(pair: Pair) -> None:
    params = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=1)
    ticket = await pair.start_leg("a", params=params)
    await pair.send_leg("a", ticket, params=params)
    assert (await pair.to_giver.wait_end("a")).finish is FinishReason.LENGTH
    assert (await pair.to_taker.wait_end("a")).finish is FinishReason.HANDED_OVER  # its end is the sender's to say
    await pair.both_idle()


async def test_a_replica_whose_data_plane_broke_ends(start_shell: Any, connect_router: Any) -> None:
    config = ReplicaConfig(
        replica_id="d", role=Role.DECODE, transfer=TransferConfig(secret="only for this test", host="127.0.0.1")
    )
    engine = FakeEngine(SPEC, LAYOUT, NUM_BLOCKS)
    core = ReplicaCore(ReplicaCoreConfig(), Role.DECODE, LAYOUT, NUM_BLOCKS, 1024, SPEC.eos_token_ids, COST)
    async with data_plane(config, engine, identity_of("d")) as (identity, transfer):
        shell = start_shell(core=core, engine=engine, identity=identity, transfer=transfer)
        router = await connect_router(shell.endpoint)
        assert transfer is not None
        transfer.running = lambda: False
        assert "data plane" in (await router.wait(wire.Goodbye)).reason
        with pytest.raises(ExceptionGroup):
            await shell.ended()


async def test_an_engine_whose_kv_cannot_be_sent_is_refused_at_the_start() -> None:
    engine: Any = FakeEngine(SPEC, LAYOUT, NUM_BLOCKS)
    config = ReplicaConfig(replica_id="p", role=Role.PREFILL, transfer=TransferConfig(secret="only for this test"))

    class OnDevice:
        kv_memory = None
        device = "cuda:0"

        def __getattr__(self, name: str) -> Any:
            return getattr(engine, name)

    with pytest.raises(ConfigError, match="cuda:0"):
        async with data_plane(config, OnDevice(), identity_of("p")):
            pass


async def test_a_data_plane_that_does_not_start_says_so_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, caplog.at_level(logging.INFO):
        port = other.getsockname()[1]
        transfer = TransferConfig(secret="only for this test", transport="tcp", host="127.0.0.1", port=port)
        config = ReplicaConfig(replica_id="p", role=Role.PREFILL, transfer=transfer)
        with pytest.raises(ConfigError, match=f"does not start: cannot listen on 127.0.0.1:{port}"):
            async with data_plane(config, FakeEngine(SPEC, LAYOUT, NUM_BLOCKS), identity_of("p")):
                pass
    assert not [record for record in caplog.records if record.name.startswith("phaseserve.replica")]

"""Two replica cores and a model of what lies between them: the data plane of both and the router's two legs.

The data plane copies the real bytes of one fake engine's KV into the other's at the moment of delivery, so a block that
was freed too early on either side shows as a fault of the engine. Messages wait until they are delivered, and may be
lost, come late, or twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from contracts.batch import SequenceStart
from contracts.handoff import FINISHED, DecodeLeg, HandoffReport, KVTicket, PrefillLeg
from contracts.phase import Role
from contracts.replica_io import (
    ClientGone,
    CommitKV,
    DrainRequested,
    KVArriving,
    KVClosed,
    KVLost,
    KVReceived,
    KVSendFailed,
    KVSent,
    ReplicaAction,
    ReplicaEvent,
    ReserveKV,
    SendKV,
    StopKV,
    Woken,
)
from contracts.request import SamplingParams
from scheduling.invariants import assert_nothing_left

Lab = Any
Told = KVClosed | KVLost | KVReceived | KVSendFailed | KVSent
"""What the data plane says about one transfer."""


@dataclass
class Transfer:
    """One ticket, as the data plane knows it. `to_d`, `to_p`: that side may still be touched."""

    ticket: KVTicket
    to_d: bool = True
    to_p: bool = False
    source: tuple[int, ...] = ()
    commit: CommitKV | None = None


class PairLab:
    """Replica `p` computes, replica `d` decodes. `queue` holds what is under way, as `(side, event or action)`."""

    def __init__(self, p: Lab, d: Lab) -> None:
        self.p, self.d = p, d
        self.transfers: dict[str, Transfer] = {}
        self.queue: list[tuple[Lab, Told | CommitKV | PrefillLeg, str]] = []
        self.seen = {id(p): 0, id(d): 0}
        self.past: list[tuple[Lab, Told]] = []
        self.refused_legs: set[str] = set()
        self.num_tickets = 0

    # --- what a test does

    def arrive(self, request_id: str, prompt: Any, max_tokens: int = 4, **rest: Any) -> Any:
        """A request whose decode leg goes to `d`."""
        expected_s, rate = rest.pop("expected_s", 0.1), rest.pop("rate", 1e6)
        leg = DecodeLeg(prefill_replica_id="p", expected_s=expected_s, link_bytes_per_s=rate)
        record = self.d.arrive(request_id, prompt, max_tokens, leg=leg, **rest)
        self.work()
        return record

    def right_output(self, prompt: tuple[int, ...], sampling: SamplingParams, count: int) -> tuple[int, ...]:
        """What a sequence says first, wherever it runs."""
        output: tuple[int, ...] = self.d.engine.expected_output(SequenceStart("x", prompt, sampling), count)
        return output

    def send(self, lab: Lab, event: ReplicaEvent) -> None:
        """Tell one core, and take what it asks of the data plane."""
        lab.send(event)
        self.work()

    def step(self, lab: Lab) -> bool:
        """End the step of one replica."""
        ran = lab.step() is not None
        self.work()
        return ran

    def wait(self, duration_s: float) -> None:
        """Let time pass on both; a sender at work gives signs of life, as its data plane does."""
        for request_id in [name for name, transfer in self.transfers.items() if transfer.to_d]:
            leg = self.p.core.state.sequences.get(request_id)
            if leg is not None and not leg.is_over:
                self.send(self.d, KVArriving(request_id, 0, 1e6, duration_s))
        for lab in (self.p, self.d):
            lab.now += duration_s
            self.send(lab, Woken())

    def deliver(self, index: int = 0) -> bool:
        """Let one message arrive."""
        if not self.queue:
            return False
        lab, message, request_id = self.queue.pop(index % len(self.queue))
        if isinstance(message, PrefillLeg):
            self._arrive_at_p(request_id, message)
        elif isinstance(message, CommitKV):
            self._commit(request_id, message)
        else:
            self._tell(lab, message)
        return True

    def lose(self, index: int) -> None:
        """A message of one side to the other that never arrives. Answers of the own data plane are not lost."""
        losable = [entry for entry in self.queue if not isinstance(entry[1], KVClosed)]
        if losable:
            self.queue.remove(losable[index % len(losable)])

    def repeat(self, index: int) -> None:
        """Something that was said once is said again."""
        if self.past:
            lab, event = self.past[index % len(self.past)]
            if not self._is_live(lab, event):
                self.send(lab, event)

    def settle(self) -> None:
        """Until nothing runs and nothing is under way."""
        for _ in range(3000):
            moved = self.deliver() or self.step(self.p) or self.step(self.d)
            if not moved:
                if not (self.p.core.state.sequences or self.d.core.state.sequences):
                    return
                self.wait(1.0)
        raise AssertionError(f"still there: {self.p.core.state.sequences} {self.d.core.state.sequences} {self.queue}")

    def finish(self) -> None:
        """Drain both: every request ended once and right, every block is free, nothing was touched too late."""
        self.settle()
        for lab in (self.p, self.d):
            self.send(lab, DrainRequested())
            assert lab.drained
            assert lab.engine.faults == []
            assert_nothing_left(lab.core)
            for request_id, record in lab.got.items():
                assert (record.finish is not None) != (request_id in lab.refused), request_id
                if request_id not in lab.refused:
                    lab.expect_right(request_id)
        assert not any(transfer.to_d or transfer.to_p for transfer in self.transfers.values())

    # --- the data plane

    def work(self) -> None:
        """Do what the cores asked for since the last time; check that they hold what is being touched."""
        for lab in (self.p, self.d):
            while self.seen[id(lab)] < len(lab.actions):
                action = lab.actions[self.seen[id(lab)]]
                self.seen[id(lab)] += 1
                self._perform(lab, action)
        for request_id, transfer in self.transfers.items():
            if transfer.to_d:
                held = self.d.core.state.sequences[request_id].blocks
                assert set(transfer.ticket.blocks) <= set(held), f"{request_id}: freed while it is written to"
            if transfer.to_p:
                held = self.p.core.state.sequences[request_id].blocks
                assert set(transfer.source) <= set(held), f"{request_id}: freed while it is read"

    def _perform(self, lab: Lab, action: ReplicaAction) -> None:
        match action:
            case ReserveKV():
                ticket = self._issue(action)
                assert action.request_id not in self.transfers, "a second ticket"
                self.transfers[action.request_id] = Transfer(ticket)
                self.queue.append((self.p, PrefillLeg(ticket=ticket), action.request_id))
            case SendKV():
                transfer = self.transfers[action.request_id]
                assert transfer.ticket == action.ticket
                transfer.to_p, transfer.source = True, action.blocks
                if not transfer.to_d:
                    self._to(self.p, KVSendFailed(action.request_id, "the ticket is not valid any more"))
            case CommitKV():
                self.queue.append((self.d, action, action.request_id))
            case StopKV(request_id=request_id, reason=reason):
                transfer = self.transfers[request_id]
                self._to(lab, KVClosed(request_id))
                if lab is self.p and transfer.to_d:
                    self._to(self.d, KVLost(request_id, reason, finished=reason == FINISHED))
                if lab is self.d and transfer.to_p:
                    self._to(self.p, KVSendFailed(request_id, reason))

    def _issue(self, action: ReserveKV) -> KVTicket:
        self.num_tickets += 1
        return KVTicket(
            ticket_id=f"{self.num_tickets:032x}",
            receiver_id="d",
            receiver_incarnation="d1",
            num_tokens=action.num_tokens,
            skip_tokens=action.skip_tokens,
            blocks=action.blocks,
            block_size=self.d.layout.block_size,
        )

    def _to(self, lab: Lab, event: Told) -> None:
        self.queue.append((lab, event, event.request_id))

    def _arrive_at_p(self, request_id: str, leg: PrefillLeg) -> None:
        request = self.d.requests[request_id]
        self.p.arrive(
            request_id,
            request.prompt_token_ids,
            sampling=request.sampling,
            slo=request.slo,
            priority=request.priority,
            leg=leg,
            output=request.output_token_ids,
        )
        if request_id in self.p.refused:
            self.send(self.d, ClientGone(request_id))
        self.work()

    def _commit(self, request_id: str, action: CommitKV) -> None:
        transfer = self.transfers[request_id]
        if not (transfer.to_d and transfer.to_p):
            return
        ticket, size = transfer.ticket, self.d.layout.block_size
        skipped = ticket.skip_tokens // size
        number = self.d.layout.blocks_for(ticket.num_tokens)
        copy_blocks(self.p.engine, transfer.source[skipped:number], self.d.engine, ticket.blocks)
        report = HandoffReport(
            num_bytes=len(ticket.blocks) * size * self.d.layout.bytes_per_token,
            transfer_s=0.2,
            exposed_s=0.05,
            transport="model",
            prefill_replica_id="p",
        )
        self._to(self.p, KVSent(request_id, report.num_bytes))
        self._tell(self.d, KVReceived(request_id, action.token_ids, action.logprobs, report))

    def _tell(self, lab: Lab, event: Told) -> None:
        transfer = self.transfers[event.request_id]
        match event:
            case KVReceived():
                ended = self.d.core.state.sequences[event.request_id].is_over
                transfer.to_d = ended  # a stop is under way: its answer is still to come
            case KVSent():
                ended = not transfer.to_p or self.p.core.state.sequences[event.request_id].status == "ending"
                transfer.to_p = transfer.to_p and ended
            case KVClosed():
                if lab is self.d:
                    transfer.to_d = False
                else:
                    transfer.to_p = False
        self.past.append((lab, event))
        self.send(lab, event)

    def _is_live(self, lab: Lab, event: Told) -> bool:
        """Whether saying it again would be a new, false statement."""
        transfer = self.transfers[event.request_id]
        return isinstance(event, KVClosed | KVReceived | KVSent) and (transfer.to_d if lab is self.d else transfer.to_p)


def copy_blocks(source: Any, blocks: tuple[int, ...], target: Any, into: tuple[int, ...]) -> None:
    """The bytes of these blocks of one engine, all layers, to those of the other."""
    assert len(blocks) == len(into)
    size = source.kv_layout.block_bytes_per_layer
    for layer in range(source.kv_layout.num_layers):
        for here, there in zip(blocks, into, strict=True):
            begin, end = (layer * source.num_blocks + here) * size, (layer * target.num_blocks + there) * size
            target.kv_memory[end : end + size] = source.kv_memory[begin : begin + size]


@pytest.fixture
def pair_lab(replica_lab: Any) -> Any:
    """Builds a pair: `p` and `d` are the arguments of the two labs."""

    def build(p: dict[str, Any] | None = None, d: dict[str, Any] | None = None) -> PairLab:
        labs = []
        for role, settings in ((Role.PREFILL, p), (Role.DECODE, d)):
            arguments = {"role": role, **(settings or {})}
            labs.append(replica_lab(arguments.pop("role"), **arguments))
        return PairLab(*labs)

    return build

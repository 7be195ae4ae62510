"""A scripted replica on a real loopback socket, and the data plane that it shares with others of a test."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

import zmq
import zmq.asyncio
from tokenizers import Tokenizer

from contracts import wire
from contracts.batch import PromptLogprobs, TokenLogprobs
from contracts.errors import ErrorInfo
from contracts.handoff import DecodeLeg, HandoffReport, KVTicket, LinkView, Peer, PrefillLeg
from contracts.phase import Phase, Role
from contracts.replica_io import SequenceOutput, SequenceUsage
from contracts.request import FinishReason, Request
from contracts.views import SLACK_QUANTILES, ReplicaView, StepCost
from engine.checkpoint.model_files import ModelFiles
from tests.router.serving.data_plane import DataPlane, identity_of

EOS = 2


class ScriptedReplica:
    """Speaks the wire protocol; every sequence gets `reply(request)` and, if it fits, an end token.

    `pace_s` between outputs, `per_output` tokens in each; with `gate` cleared nothing is produced. It remembers what
    it was told (`submits`, `cancelled`, `leases`, `peers`) and which sequences are alive (`alive`).

    With a leg it plays its part of a hand-off over the `plane` that it shares with the other side: see `pools`.
    """

    def __init__(self, files: ModelFiles, tokenizer: Tokenizer, replica_id: str = "r0") -> None:
        self.files = files
        self.tokenizer = tokenizer
        self.identity = identity_of(files, replica_id, "i1")
        self.reply: Callable[[Request], list[int]] = lambda request: tokenizer.encode("Hello world").ids
        self.pace_s = 0.0
        self.per_output = 1
        self.gate = asyncio.Event()
        self.gate.set()
        self.refuse_with: ErrorInfo | None = None
        self.fail_after: int | None = None
        self.failure = ErrorInfo(status=500, code="engine_failure", message="the step raised")
        self.silent = False
        self.full = False
        self.step_age_s = 0.0
        self.submits: list[Request] = []
        self.cancelled: list[str] = []
        self.leases: list[float] = []
        self.alive: dict[str, asyncio.Task[None]] = {}
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        port = self._socket.bind_to_random_port("tcp://127.0.0.1")
        self.endpoint = f"tcp://127.0.0.1:{port}"
        self._peers: set[bytes] = set()
        self.role = Role.MIXED
        self.takes_roles = True
        self.drains = 0
        self.links: tuple[LinkView, ...] = ()
        self.plane = DataPlane()
        self.may_reserve = asyncio.Event()
        self.may_reserve.set()
        self.may_receive = asyncio.Event()
        self.may_receive.set()
        self.fail_receive: ErrorInfo | None = None
        self.say_first = self.report_handoff = True
        self.refuses: Callable[[Request], ErrorInfo | None] = lambda request: self.refuse_with
        self.fails_at: Callable[[Request], int | None] = lambda request: self.fail_after
        self.cached_tokens = 0
        self.peers: list[tuple[Peer, ...]] = []
        self._steps = itertools.count(1)
        self._acked = 0
        self._tasks = [asyncio.ensure_future(part()) for part in (self._serve, self._beat)]

    def say(self, words: str) -> None:
        """From now on every sequence gets this text."""
        self.reply = lambda request: self.tokenizer.encode(words, add_special_tokens=False).ids

    async def close(self) -> None:
        for task in (*self._tasks, *self.alive.values()):
            task.cancel()
        await asyncio.gather(*self._tasks, *self.alive.values(), return_exceptions=True)
        self._context.destroy(linger=0)

    async def tell(self, message: wire.ReplicaMessage) -> None:
        for peer in self._peers:
            await self._socket.send_multipart([peer, wire.encode(message)])

    async def tell_raw(self, frame: bytes) -> None:
        for peer in self._peers:
            await self._socket.send_multipart([peer, frame])

    def view(self) -> ReplicaView:
        return ReplicaView(
            replica_id=self.identity.replica_id,
            incarnation=self.identity.incarnation,
            role=self.role,
            phase=Phase.MIXED,
            links=self.links,
            draining=False,
            lease_left_s=0.0,
            waiting=0,
            waiting_tokens=0,
            oldest_waiting_s=0.0,
            backlog_s=0.0,
            running=64 if self.full else len(self.alive),
            slack_quantiles_s=tuple(10.0 for _ in SLACK_QUANTILES) if self.alive or self.full else (),
            slack_mean_s=10.0,
            decode_step_s=0.001,
            free_blocks=0 if self.full else 4096,
            num_blocks=4096,
            block_size=16,
            cost=StepCost(a0=1e-3, a1=1e-6, b0=0.0, b1=0.0, b2=0.0, b3=0.0),
            acked_submit_index=self._acked,
            steps_done=next(self._steps),
            step_age_s=self.step_age_s,
        )

    async def _serve(self) -> None:
        while True:
            peer, frame = await self._socket.recv_multipart()
            message = wire.decode_router_message(frame)
            self._peers.add(peer)
            match message:
                case wire.Hello() if not self.silent:
                    welcome = wire.Welcome(identity=self.identity, view=self.view())
                    await self._socket.send_multipart([peer, wire.encode(welcome)])
                case wire.Submit(requests=requests):
                    for request in requests:
                        await self._accept(request)
                case wire.Cancel(request_ids=ids):
                    for sequence_id in ids:
                        self.cancelled.append(sequence_id)
                        if (task := self.alive.pop(sequence_id, None)) is not None:
                            task.cancel()
                case wire.Peers(peers=peers):
                    self.peers.append(peers)
                case wire.Assign(role=role):
                    self.role = role if self.takes_roles else self.role
                    await self.tell(wire.Heartbeat(view=self.view()))
                case wire.Drain():
                    self.drains += 1
                case wire.Lease(duration_s=duration_s):
                    self.leases.append(duration_s)
                case _:
                    pass

    async def _accept(self, request: Request) -> None:
        self.submits.append(request)
        self._acked = max(self._acked, request.submit_index)
        if (refusal := self.refuses(request)) is not None:
            await self.tell(wire.Refused(request_id=request.request_id, error=refusal))
            return
        match request.leg:
            case DecodeLeg():
                life = self._take_in(request, request.leg)
            case PrefillLeg(ticket=ticket):
                life = self._give_away(request, ticket)
            case _:
                life = self._generate(request)
        self.alive[request.request_id] = asyncio.ensure_future(life)

    async def _take_in(self, request: Request, leg: DecodeLeg) -> None:
        """The decode leg: a ticket, then the KV, then the rest of the tokens; the first one is said here too."""
        await self.may_reserve.wait()
        ticket = self.plane.issue(self.identity, request)
        await self.tell(wire.Reserved(request_id=request.request_id, ticket=ticket))
        first = await self.plane.slots[ticket.ticket_id]
        await self.may_receive.wait()
        if self.fail_receive is not None:
            await self._produce(
                SequenceOutput(request_id=request.request_id, finish=FinishReason.ERROR, error=self.fail_receive)
            )
            self.alive.pop(request.request_id, None)
            return
        report = HandoffReport(
            num_bytes=1000,
            transfer_s=0.2,
            exposed_s=0.05,
            transport="test",
            prefill_replica_id=leg.prefill_replica_id,
        )
        start = len(request.output_token_ids)
        assert first == self._whole(request)[0][start], "the sender sampled another token"
        begin = start if self.say_first else start + 1
        await self._generate(request, begin, report if self.report_handoff else None)

    async def _give_away(self, request: Request, ticket: KVTicket) -> None:
        """The prefill leg: the first token, and the KV; no hand-off if that token is the last."""
        await self.gate.wait()
        await asyncio.sleep(self.pace_s)
        ids, ends = self._whole(request)
        start = len(request.output_token_ids)
        if self.fails_at(request) is not None:
            await self._produce(
                SequenceOutput(request_id=request.request_id, finish=FinishReason.ERROR, error=self.failure)
            )
            self.alive.pop(request.request_id, None)
            return
        is_last = start + 1 == len(ids)
        sampling = request.sampling
        await self._produce(
            SequenceOutput(
                request_id=request.request_id,
                token_ids=(ids[start],),
                first_index=start,
                logprobs=(_logprobs(ids[start], sampling.logprobs),) if sampling.logprobs is not None else (),
                prompt_logprobs=_prompt_logprobs(request),
                finish=(ends or FinishReason.LENGTH) if is_last else FinishReason.HANDED_OVER,
                stop_token_id=EOS if is_last and ends else None,
                usage=self._usage(request, 1),
            )
        )
        if not is_last and not (slot := self.plane.slots[ticket.ticket_id]).done():
            slot.set_result(ids[start])
        self.alive.pop(request.request_id, None)

    def _whole(self, request: Request) -> tuple[list[int], FinishReason | None]:
        """The sequence's output from its beginning, and whether an end token ends it."""
        ids = self.reply(request)
        sampling = request.sampling
        ends = None if len(ids) >= sampling.max_tokens else FinishReason.STOP
        if ends and sampling.ignore_eos:
            ids = list(itertools.islice(itertools.cycle(ids), sampling.max_tokens))
            ends = None
        return [*ids[: sampling.max_tokens], *([EOS] if ends else [])], ends

    def _usage(self, request: Request, num_output: int, handoff: HandoffReport | None = None) -> SequenceUsage:
        return SequenceUsage(
            prompt_tokens=len(request.prompt_token_ids),
            cached_tokens=self.cached_tokens,
            output_tokens=num_output,
            queue_s=0.0,
            prefill_s=0.0,
            switch_wait_s=0.0,
            preemptions=0,
            handoff=handoff,
        )

    async def _generate(self, request: Request, begin: int | None = None, handoff: HandoffReport | None = None) -> None:
        ids, ends = self._whole(request)
        sampling = request.sampling
        usage = self._usage(request, len(ids), handoff)
        begin = len(request.output_token_ids) if begin is None else begin
        for start in range(begin, len(ids), self.per_output):
            await self.gate.wait()
            await asyncio.sleep(self.pace_s)
            fails_at = self.fails_at(request)
            if fails_at is not None and start >= fails_at:
                error = self.failure
                await self._produce(
                    SequenceOutput(request_id=request.request_id, finish=FinishReason.ERROR, error=error)
                )
                break
            part = tuple(ids[start : start + self.per_output])
            last = start + self.per_output >= len(ids)
            output = SequenceOutput(
                request_id=request.request_id,
                token_ids=part,
                first_index=start,
                logprobs=tuple(_logprobs(token, sampling.logprobs) for token in part)
                if sampling.logprobs is not None
                else (),
                prompt_logprobs=_prompt_logprobs(request) if start == begin else (),
                finish=(ends or FinishReason.LENGTH) if last else None,
                stop_token_id=EOS if last and ends else None,
                usage=usage if last or start == begin else None,
            )
            await self._produce(output)
        self.alive.pop(request.request_id, None)

    async def _produce(self, output: SequenceOutput) -> None:
        await self.tell(wire.Outputs(outputs=(output,)))

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(0.05)
            if not self.silent:
                await self.tell(wire.Heartbeat(view=self.view()))


def _logprobs(token: int, top: int) -> TokenLogprobs:
    """Made up: the chosen token first, its neighbours behind it."""
    return TokenLogprobs(token, -0.25, tuple((token + i, -0.25 - i) for i in range(top)))


def _prompt_logprobs(request: Request) -> tuple[PromptLogprobs, ...]:
    top = request.sampling.prompt_logprobs
    if top is None:
        return ()
    entries = tuple(_logprobs(token, top) for token in request.prompt_token_ids[1:])
    return (PromptLogprobs(request.request_id, 1, entries),)

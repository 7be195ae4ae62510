"""One sequence of a placement: its decode leg, its prefill leg if it has one, and one stream of tokens out of both.

Both legs of a disaggregated sequence say its first token, so that it reaches the client at once and is not lost when
the sender dies; positions in the output tell which one is kept. A token that is missing, comes twice from one leg or
differs between the legs is an error of the placement, never text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from contracts.errors import ProtocolError
from contracts.handoff import KVTicket
from contracts.replica_io import SequenceOutput, SequenceUsage
from contracts.request import FinishReason


@dataclass(slots=True, eq=False)
class Leg:
    """One sequence on one replica. `next_index` is the position of the next output token that it will say."""

    replica_id: str
    next_index: int
    ended: bool = False


@dataclass(slots=True, eq=False)
class PlacedSequence:
    """Sequence `number` of a flight in one placement, which began with `start_index` output tokens made elsewhere.

    `prefill_replica_id` is where the plan wants it computed, `prefill` the leg there once it was sent. With
    `waits_for_prefill` nothing is shown before that leg has ended: it alone knows the prompt's log probabilities.
    `started`: a token of this placement was taken in. The decode leg is authoritative from then on. `reported`: the
    decode leg has told what the hand-off cost. `prefill_cached_tokens` of its prompt were cached where it was computed,
    once that replica has said so.
    """

    number: int
    sequence_id: str
    start_index: int
    decode: Leg
    prefill_replica_id: str | None = None
    waits_for_prefill: bool = False
    prefill: Leg | None = None
    ticket: KVTicket | None = None
    started: bool = False
    handed_over: bool = False
    reported: bool = False
    prefill_cached_tokens: int | None = None
    _held: list[SequenceOutput] = field(default_factory=list)

    def leg_on(self, replica_id: str | None) -> Leg | None:
        """The leg that still runs on a replica."""
        if self.decode.replica_id == replica_id:
            leg = self.decode
        elif self.prefill is not None and self.prefill.replica_id == replica_id:
            leg = self.prefill
        else:
            return None
        return None if leg.ended else leg

    @property
    def received(self) -> bool:
        """The decode replica has the sequence's KV: it said so by a token."""
        return self.decode.next_index > self.start_index

    @property
    def needs_prefill(self) -> bool:
        """The prefill replica still has something to say, or to do before anything can be said."""
        return self.prefill_replica_id is not None and not self.started and not self.handed_over

    def needs(self, replica_id: str) -> bool:
        """Without that replica this placement of the sequence comes to nothing."""
        if self.decode.replica_id == replica_id:
            return not self.decode.ended
        return self.prefill_replica_id == replica_id and self.needs_prefill

    def end(self) -> list[str]:
        """Both legs are over. Returns the replicas that must be told."""
        told = [] if self.decode.ended else [self.decode.replica_id]
        if self.prefill is not None and (not self.prefill.ended or (self.handed_over and not self.received)):
            told.append(self.prefill.replica_id)
            self.prefill.ended = True
        self.decode.ended = True
        self.handed_over = False  # nobody is told twice
        return told

    def usage_of(self, usage: SequenceUsage) -> SequenceUsage:
        """What the client is told: of a prompt that was computed elsewhere, what was cached there. What the decode
        replica had cached was computed there all the same, and only did not cross."""
        cached = self.prefill_cached_tokens
        return usage if cached is None else msgspec.structs.replace(usage, cached_tokens=cached)

    def goes_on(self, leg: Leg, output: SequenceOutput, known: Sequence[int]) -> bool:
        """The common case, told quickly: the decode leg's next tokens and nothing else. They count as taken in."""
        index = leg.next_index
        if (
            output.first_index != index
            or index != len(known)
            or output.finish is not None
            or output.usage is not None
            or leg is not self.decode
            or self.waits_for_prefill
        ):
            return False
        leg.next_index = index + len(output.token_ids)
        return True

    def take(self, leg: Leg, output: SequenceOutput, known: Sequence[int]) -> Iterator[SequenceOutput]:
        """What an output of one leg adds to the `known` output tokens (which grow as the caller takes it in).

        Raises `ProtocolError` when the leg repeats or leaves out a token, or contradicts the other one.
        """
        if output.token_ids:
            if output.first_index != leg.next_index:
                raise ProtocolError(
                    f"replica {leg.replica_id} said output token {output.first_index} of {self.sequence_id}; "
                    f"its next one is {leg.next_index}"
                )
            leg.next_index += len(output.token_ids)
        if leg is self.prefill:
            yield from self._of_prefill(leg, output, known)
            return
        if output.finish is not None:
            leg.ended = True
            if output.finish is FinishReason.HANDED_OVER:
                if not self.needs_prefill or self.received:
                    raise ProtocolError(
                        f"replica {leg.replica_id} handed {self.sequence_id} over, but it is to decode it"
                    )
                return  # the sender's first token was the last one: its word of that may come later
        if output.usage is not None and output.usage.handoff is not None:
            self.reported = True
        if self.waits_for_prefill:
            self._held.append(output)
        else:
            yield _beyond(known, output)

    def _of_prefill(self, leg: Leg, output: SequenceOutput, known: Sequence[int]) -> Iterator[SequenceOutput]:
        if output.finish is not None:
            leg.ended = True
        if output.finish is FinishReason.HANDED_OVER:
            self.handed_over = True
            self.waits_for_prefill = False
            if output.usage is not None:
                self.prefill_cached_tokens = output.usage.cached_tokens
            yield _beyond(known, msgspec.structs.replace(output, finish=None, usage=None))
            held, self._held = self._held, []
            for later in held:
                yield _beyond(known, later)
        else:
            yield _beyond(known, output)


def _beyond(known: Sequence[int], output: SequenceOutput) -> SequenceOutput:
    """`output` without the tokens that are known already. Raises `ProtocolError` if it would have them otherwise."""
    if not output.token_ids or output.first_index == len(known):
        return output
    num_known = len(known) - output.first_index
    if num_known < 0:
        raise ProtocolError(f"{output.request_id}: output token {len(known)} is missing before {output.first_index}")
    same = tuple(known[output.first_index : output.first_index + len(output.token_ids)])
    if output.token_ids[: len(same)] != same:
        raise ProtocolError(f"{output.request_id}: the legs do not agree on output token {output.first_index}")
    return msgspec.structs.replace(
        output,
        token_ids=output.token_ids[num_known:],
        logprobs=output.logprobs[num_known:],
        first_index=max(output.first_index, len(known)),
    )

"""One HTTP request on its way: a flight for each prompt, a choice for each answer, and the wake-up of its writer.

Tokens become text the moment they arrive, so a stop string ends its sequence at once however slowly the client reads.
What waits here is bounded by the request itself: prompts x n x max_tokens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from contracts.errors import PhaseServeError
from contracts.plan import Plan
from contracts.replica_io import SequenceOutput, SequenceUsage
from router.choice import Choice
from router.generation import Generation
from router.token_table import TokenTable


@dataclass(slots=True)
class SequenceTrack:
    """When one sequence's tokens arrived at this router."""

    first_s: float | None = None
    last_s: float = 0.0
    num_tokens: int = 0
    ended: bool = False
    usage: SequenceUsage | None = None

    def tokens_arrived(self, num_new: int, now: float) -> float | None:
        """An output with tokens arrived. Seconds since the one before, None for the first."""
        gap_s = None if self.first_s is None else now - self.last_s
        if self.first_s is None:
            self.first_s = now
        self.last_s = now
        self.num_tokens += num_new
        return gap_s


@dataclass(slots=True, eq=False)
class Flight:
    """One prompt with its n sequences: one client request of the cluster core.

    `attempt` counts placements; the ids of the sequences change with it, so that late output of a placement that was
    given up is never taken for the current one's. `ended`: the core knows nothing of it any more.
    """

    request_id: str
    prompt_index: int
    call: Call
    arrived_s: float
    attempt: int = 0
    plan: Plan | None = None
    tracks: list[SequenceTrack] = field(default_factory=list)
    ended: bool = False

    @property
    def replica_id(self) -> str | None:
        """Where it is placed now."""
        return None if self.plan is None else self.plan.replica_id

    def sequence_id(self, i: int) -> str:
        """The id by which the replica knows choice `i`."""
        suffix = f"#{i}" if len(self.tracks) > 1 else ""
        return f"{self.request_id}{suffix}" + (f"~{self.attempt}" if self.attempt > 1 else "")

    def sequence_ids(self, *, only_open: bool = False) -> tuple[str, ...]:
        """Ids of the current placement."""
        return tuple(self.sequence_id(i) for i, track in enumerate(self.tracks) if not (only_open and track.ended))

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The prompt."""
        return self.call.generation.prompts[self.prompt_index].token_ids

    def place(self, plan: Plan) -> None:
        """Begin a placement. Earlier ones produced nothing that was shown."""
        self.plan = plan
        self.attempt += 1
        self.tracks = [SequenceTrack() for _ in self.tracks]
        self.call.renew_choices(self.prompt_index)

    def unplace(self, attempt: int) -> None:
        """Placement number `attempt` is over; without a newer one the flight is pending again."""
        if self.attempt == attempt:
            self.plan = None

    def deliver(self, i: int, output: SequenceOutput) -> bool:
        """Take in what sequence `i` produced. True when a stop string ended it and the replica must be told."""
        track = self.tracks[i]
        track.usage = output.usage or track.usage
        stopped = self.call.deliver(self.prompt_index * len(self.tracks) + i, output)
        track.ended = stopped or output.finish is not None
        return stopped


class Call:
    """One task waits in `wait`; everything else is called from the event loop.

    `on_change`, if set, is asked first when a choice changed while no other change waits: true means that the task
    need not be woken for it.
    """

    def __init__(self, generation: Generation, table: TokenTable) -> None:
        self.generation = generation
        self.flights: list[Flight] = []
        self.error: PhaseServeError | None = None
        self._table = table
        self.on_change: Callable[[int], bool] | None = None
        self._dirty: dict[int, None] = {}
        self._wake = asyncio.Event()
        self.choices = [self._new_choice() for _ in range(len(generation.prompts) * generation.n)]

    @property
    def ended(self) -> bool:
        """Every choice has its finish reason."""
        return all(choice.finish_reason is not None for choice in self.choices)

    @property
    def num_tokens(self) -> int:
        """Tokens generated so far, over all choices."""
        return sum(choice.num_tokens for choice in self.choices)

    def deliver(self, index: int, output: SequenceOutput) -> bool:
        """Take in tokens of one choice. True when a stop string ended it and the replica must be told."""
        stopped = self.choices[index].push(output)
        if self._dirty or self.on_change is None or not self.on_change(index):
            self._dirty[index] = None
            self._wake.set()
        return stopped

    def fail(self, error: PhaseServeError) -> None:
        """Ends the call for whoever waits. The first error counts."""
        if self.error is None:
            self.error = error
        self._wake.set()

    async def wait(self) -> list[int]:
        """Choices that changed since the last call, in the order of their change. Then raises the call's error."""
        while not self._dirty and self.error is None:
            self._wake.clear()
            await self._wake.wait()
        if not self._dirty and self.error is not None:
            raise self.error
        changed = list(self._dirty)
        self._dirty.clear()
        return changed

    def renew_choices(self, prompt_index: int) -> None:
        """Forget what a placement that was given up had produced for this prompt (nothing of it was shown)."""
        first = prompt_index * self.generation.n
        for index in range(first, first + self.generation.n):
            self.choices[index] = self._new_choice()
            self._dirty.pop(index, None)

    def of_prompt(self, prompt_index: int) -> list[Choice]:
        """The n choices of one prompt."""
        n = self.generation.n
        return self.choices[prompt_index * n : (prompt_index + 1) * n]

    def _new_choice(self) -> Choice:
        generation = self.generation
        return Choice(
            self._table,
            stops=generation.stops,
            min_tokens=generation.sampling.min_tokens,
            shows_tokens=generation.logprobs is not None,
        )

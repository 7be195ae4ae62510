"""One HTTP request on its way: a flight for each prompt, a choice for each answer, and the wake-up of its writer.

Tokens become text the moment they arrive, so a stop string ends its sequence at once however slowly the client reads.
What waits here is bounded by the request itself: prompts x n x max_tokens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from contracts.errors import PhaseServeError
from contracts.replica_io import SequenceOutput
from router.choice import Choice
from router.generation import Generation
from router.token_table import TokenTable

if TYPE_CHECKING:
    from router.flight import Flight


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

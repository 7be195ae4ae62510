"""The shape of a step as sums: all that the cost model needs to know about a batch."""

from __future__ import annotations

from dataclasses import dataclass

from contracts.views import StepCost

NUM_TERMS = 6


@dataclass(slots=True)
class StepShape:
    """Sums over the chunks of one step: tokens, past x chunk, chunk squared, decode context (tokens), decode rows, and
    the past tokens that prefill chunks read (a roofline asks for these; `scheduling.step_predictor` does not)."""

    tokens: int = 0
    past_chunk: int = 0
    chunk_sq: int = 0
    decode_context: int = 0
    decodes: int = 0
    past: int = 0

    @classmethod
    def of_decodes(cls, count: int, context: int) -> StepShape:
        """A step of decode rows alone, as `add_decodes`."""
        return cls(count, 0, 0, context, count)

    def add_prefill(self, past: int, chunk: int) -> None:
        """One prefill chunk of `chunk` tokens behind `past` tokens."""
        self.tokens += chunk
        self.past += past
        self.past_chunk += past * chunk
        self.chunk_sq += chunk * chunk

    def add_decodes(self, count: int, context: int) -> None:
        """`count` decode rows whose context lengths add up to `context` tokens."""
        self.tokens += count
        self.decodes += count
        self.decode_context += context

    def terms(self) -> tuple[float, ...]:
        """The terms of `scheduling.step_cost`, in the order a0, a1, b0, b1, b2, b3."""
        return (
            1.0,
            float(self.tokens),
            float(self.past_chunk),
            float(self.chunk_sq),
            float(self.decode_context),
            float(self.decodes),
        )

    def predict_s(self, cost: StepCost) -> float:
        """Predicted duration in seconds; an empty step costs nothing."""
        if self.tokens == 0:
            return 0.0
        return (
            cost.a0
            + cost.a1 * self.tokens
            + cost.b0 * self.past_chunk
            + cost.b1 * self.chunk_sq
            + cost.b2 * self.decode_context
            + cost.b3 * self.decodes
        )


def prefill_s(cost: StepCost, past: int, tokens: int, chunk: int) -> float:
    """Time to prefill `tokens` behind `past` in chunks of `chunk`, in closed form.

    Equals `scheduling.step_cost.predict_prefill_s`; that one loops over the chunks, this one runs per waiting prompt.
    """
    steps, past_chunk, chunk_sq = prefill_sums(past, tokens, chunk)
    return cost.a0 * steps + cost.a1 * tokens + cost.b0 * past_chunk + cost.b1 * chunk_sq


def prefill_sums(past: int, tokens: int, chunk: int) -> tuple[int, int, int]:
    """Of `tokens` behind `past` in chunks of `chunk`: the number of steps, past x chunk and chunk squared."""
    full, rest = divmod(tokens, chunk)
    past_chunk = chunk * (full * past + chunk * full * (full - 1) // 2) + (past + full * chunk) * rest
    return full + (1 if rest else 0), past_chunk, full * chunk * chunk + rest * rest

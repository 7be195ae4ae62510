"""What the fleet is asked for: arrival rate, lengths and targets over the last seconds, in constant memory."""

from __future__ import annotations

import msgspec

from contracts.cluster_io import ClientRequestArrived
from contracts.request import Slo
from scheduling.window_mean import WindowMean

PRIOR_OUTPUT_TOKENS = 64.0
MOST_SURPRISE = 4.0
"""What runs is believed up to so many times the output that was seen to end: after a burst there are few arrivals."""
LONG_PROMPT = 2.0
"""A long prompt, as it is planned for, in means: about the 90th percentile of the exponential-like mixes seen."""


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """Sequences per second, and what one of them needs on average. `prompt_tokens` are those to compute (cached ones
    left out), `sent_tokens` all of the prompt, `long_prompt_tokens` that of a long one."""

    rate: float
    prompt_tokens: float
    long_prompt_tokens: float
    sent_tokens: float
    output_tokens: float
    slo: Slo


class DemandEstimate:
    """Takes arrivals and ends; `now` never goes back. Output lengths are remembered four times as long as arrivals,
    because long outputs end late."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._prompts = WindowMean(window_s)
        self._squares = WindowMean(window_s)
        self._cached = WindowMean(window_s)
        self._ttft = WindowMean(window_s)
        self._tpot = WindowMean(window_s)
        self._outputs = WindowMean(4 * window_s)
        self._fresh_outputs = WindowMean(window_s)
        self._began_at: float | None = None

    def is_young(self, now: float) -> bool:
        """Whether less than a window has been seen: of the outputs only the short ones have ended yet."""
        return self._began_at is None or now < self._began_at + self._window_s

    def arrived(self, asked: ClientRequestArrived, now: float) -> None:
        """A request came."""
        if self._began_at is None:
            self._began_at = now
        num = float(asked.num_sequences)
        self._prompts.add(now, asked.prompt_tokens, num)
        self._squares.add(now, float(asked.prompt_tokens) ** 2, num)
        self._ttft.add(now, asked.slo.ttft_s, num)
        self._tpot.add(now, asked.slo.tpot_s, num)

    def placed(self, cached_tokens: int, now: float) -> None:
        """So many tokens of a prompt were expected in the cache where it was placed."""
        self._cached.add(now, cached_tokens)

    def ended(self, output_tokens: float, now: float) -> None:
        """A sequence ended by itself after so many tokens."""
        self._outputs.add(now, output_tokens)
        self._fresh_outputs.add(now, output_tokens)

    def at(self, now: float, running: int, decode_step_s: float, prefill_s_per_token: float) -> Demand | None:
        """The demand, or None when nothing arrived within the window.

        `running` streams that each wait `decode_step_s` for a token tell (Little's law) how many tokens an arrival
        brings before those that are long have ended: when they are more than the ended ones had, they count.
        """
        sequences, prompt = self._prompts.weight(now), self._prompts.mean(now)
        if prompt is None or self._began_at is None:
            return None
        rate = sequences / min(self._window_s, max(1.0, now - self._began_at))
        cached = min(prompt - 1.0, self._cached.mean(now) or 0.0)
        spread = max(0.0, (self._squares.mean(now) or 0.0) - prompt * prompt) ** 0.5
        computed = prompt - cached
        ended = self._fresh_outputs.mean(now) or self._outputs.mean(now) or PRIOR_OUTPUT_TOKENS
        decoding = max(0.1, 1.0 - rate * computed * prefill_s_per_token)
        from_running = running * decoding / (rate * decode_step_s) if decode_step_s > 0.0 else 0.0
        return Demand(
            rate=rate,
            prompt_tokens=computed,
            long_prompt_tokens=min(LONG_PROMPT * computed, computed + 1.3 * spread),
            sent_tokens=prompt,
            output_tokens=max(1.0, ended, min(from_running, MOST_SURPRISE * ended)),
            slo=Slo(ttft_s=self._ttft.mean(now) or Slo().ttft_s, tpot_s=self._tpot.mean(now) or Slo().tpot_s),
        )

"""What the fleet is asked for: arrival rate, lengths and targets over the last seconds, in constant memory."""

from __future__ import annotations

import math

import msgspec

from contracts.cluster_io import ClientRequestArrived
from contracts.request import Slo
from scheduling.output_lengths import OutputLengths
from scheduling.recent_arrivals import RecentArrivals, agree
from scheduling.window_mean import WindowMean

PRIOR_OUTPUT_TOKENS = 64.0
PRIOR_ENDS = 4.0
"""The prior counts as so many ended sequences. Short outputs end first and few outputs are short: what was made so far
by what has ended is far too much in the first seconds."""
MOST_SURPRISE = 4.0
"""What runs is believed up to so many times the output that was seen to end: after a burst there are few arrivals."""
LEAST_SURPRISE = 1.5
"""What runs is not counted where it is only a little more than what is known to follow such prompts: it is noise."""
STEADY = 4.0
"""How many windows a load without change is averaged over."""
SURPRISING = 2.5
"""Standard errors by which the last window must differ from the longer one to be believed instead."""
LONG_PROMPT = 2.0
"""A long prompt, as it is planned for, in means: about the 90th percentile of the exponential-like mixes seen."""


LONGEST_LOOK_S = 4.0
"""Between two looks at what runs it is taken to have been as now for so long at most."""


class Errors(msgspec.Struct, frozen=True, kw_only=True):
    """Relative standard errors of what was estimated from few; 0: known."""

    rate: float = 0.0
    prompt: float = 0.0
    output: float = 0.0


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """Sequences per second, and what one of them needs on average. `prompt_tokens` are those to compute (cached ones
    left out), `sent_tokens` all of the prompt, `long_prompt_tokens` that of a long one."""

    rate: float
    prompt_tokens: float
    long_prompt_tokens: float
    sent_tokens: float
    output_tokens: float
    slo: Slo
    errors: Errors = Errors()


class DemandEstimate:
    """Takes arrivals and ends; `now` never goes back.

    Two windows: what the last `window_s` seconds say is used when it contradicts what `STEADY` times as many say, else
    the longer one, which is less noise. Ended outputs are remembered four times as long as arrivals, because long
    outputs end late, and by the kind of prompt for good.
    """

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._short = RecentArrivals(window_s)
        self._long = RecentArrivals(STEADY * window_s)
        self._lengths = OutputLengths()
        self._outputs = WindowMean(4 * window_s)
        self._fresh_outputs = WindowMean(window_s)
        self._began_at: float | None = None
        self._looked_at = 0.0
        self._made_tokens = 0.0
        self._num_ended = 0

    def is_young(self, now: float) -> bool:
        """Whether less than a window has been seen: of the outputs only the short ones have ended yet."""
        return self._began_at is None or now < self._began_at + self._window_s

    def arrived(self, asked: ClientRequestArrived, now: float) -> None:
        """A request came."""
        if self._began_at is None:
            self._began_at = self._looked_at = now
        expected = self._lengths.arrived(asked.prompt_tokens, float(asked.num_sequences))
        for window in (self._short, self._long):
            window.arrived(asked, expected, now)

    def placed(self, cached_tokens: int, now: float) -> None:
        """So many tokens of a prompt were expected in the cache where it was placed."""
        for window in (self._short, self._long):
            window.placed(cached_tokens, now)

    def ended(self, prompt_tokens: int, output_tokens: float, now: float) -> None:
        """A sequence ended by itself after so many tokens."""
        self._num_ended += 1
        self._lengths.ended(prompt_tokens, output_tokens)
        self._outputs.add(now, output_tokens)
        self._fresh_outputs.add(now, output_tokens)

    def ended_tokens(self, now: float) -> float:
        """Mean output of the sequences that ended lately: those that run now are like them, whatever arrives."""
        return self._outputs.mean(now) or PRIOR_OUTPUT_TOKENS

    def at(self, now: float, running: int, decode_step_s: float, prefill_s_per_token: float) -> Demand | None:
        """The demand, or None when nothing arrived within the window.

        `running` streams that each wait `decode_step_s` for a token tell (Little's law) how many tokens an arrival
        brings before those that are long have ended: when they are more than the ended ones had, they count. After a
        change of the mix they are those of the old one, so what such prompts brought before counts instead. As long as
        the estimate is young, all tokens made so far are divided by what has ended (outputs that end at random).
        """
        if self._short.prompt(now) is None or self._began_at is None:
            return None
        since_s = max(1.0, now - self._began_at)
        long_s = min(self._long.window_s, since_s)
        steady = agree(self._short, self._long, long_s, now, SURPRISING)
        window = self._long if steady else self._short
        prompt, spread = window.prompt(now) or 1.0, window.spread(now)
        rate = window.count(now) / min(window.window_s, since_s)
        computed = prompt - min(prompt - 1.0, window.cached(now))
        ended = self._fresh_outputs.mean(now) or self._outputs.mean(now) or PRIOR_OUTPUT_TOKENS
        decoding = max(0.1, 1.0 - rate * computed * prefill_s_per_token)
        if decode_step_s > 0.0:
            self._made_tokens += running * decoding / decode_step_s * min(LONGEST_LOOK_S, now - self._looked_at)
        self._looked_at = now
        if self.is_young(now):
            made = self._made_tokens + PRIOR_ENDS * PRIOR_OUTPUT_TOKENS
            ended = max(ended, made / (self._num_ended + PRIOR_ENDS))
        from_running = running * decoding / (rate * decode_step_s) if decode_step_s > 0.0 else 0.0
        expected, known = window.expected_output(now)
        seen = max(ended, min(from_running, MOST_SURPRISE * ended))
        output = known * expected + (1.0 - known) * seen
        if steady and from_running > LEAST_SURPRISE * output:
            output = min(from_running, MOST_SURPRISE * ended)
        ttft_s, tpot_s = window.targets(now, Slo().ttft_s, Slo().tpot_s)
        return Demand(
            rate=rate,
            prompt_tokens=computed,
            long_prompt_tokens=min(LONG_PROMPT * computed, computed + 1.3 * spread),
            sent_tokens=prompt,
            output_tokens=max(1.0, output),
            slo=Slo(ttft_s=ttft_s, tpot_s=tpot_s),
            errors=self._errors(window.count(now), spread / prompt, now),
        )

    def _errors(self, count: float, spread: float, now: float) -> Errors:
        """Of Poisson arrivals, prompts of this relative spread, and outputs that spread as much as they are long."""
        return Errors(
            rate=1.0 / math.sqrt(max(1.0, count)),
            prompt=spread / math.sqrt(max(1.0, count)),
            output=1.0 / math.sqrt(1.0 + self._outputs.weight(now)),
        )

"""How many requests per second one replica sustains in each role within both targets, in closed form.

With prompts that take `T_p` to prefill, `m` output tokens and a decode step of `d(b) = a0 + g*b` for `b` streams:

- A replica that serves requests whole at rate `r` prefills `rho = r*T_p` of its time. Its streams get a token each
  `tau = d(b) / (1 - rho)`, and by Little's law there are `b = r*m*tau` of them: `b = r*m*a0 / (1 - rho - r*m*g)`. It
  sustains `r` while `tau <= S_TPOT` (EcoServe's `d <= S_TPOT*(n-1)/n`, with rho for 1/n), while prompts get through in
  the time that the streams' target leaves to prefill, `1 - d(b)/S_TPOT`, and while the KV of `b` streams fits.
  On a mixed replica a chunk rides in a decode step, whose fixed part `a0` is paid once for both.
- A prefill replica is a queue of its own (M/D/1): waiting, prefill and the part of the transfer that is not hidden must
  fit S_TTFT, and its link must carry the KV of what it prefills.
- A decode replica: `b = r*m*a0 / (1 - r*m*g)` streams, `d(b) <= S_TPOT`, their KV fits, the link brings it.

Sources: EcoServe (OSDI'26) for the slack economy, "Beyond the Buzz" (arXiv 2506.05508) for rate matching.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from contracts.phase import Layout
from contracts.views import StepCost
from scheduling.fleet_workload import Demand
from scheduling.link_math import exposed_transfer_s
from scheduling.step_cost import predict_prefill_s

BUSIEST = 0.9
"""Above this share of its time no queue keeps a latency target."""
HALVINGS = 24
LEAST_S = 1e-9
LEAST_SHARE = 0.01
OUT_OF_REACH = 1.2
"""A target that no replica meets even alone is planned for as this multiple of what is reached alone."""


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """What a replica of the fleet is like on average. `link_bytes_per_s` None: no two of them can hand over."""

    cost: StepCost
    prefill_chunk: int
    kv_tokens: float
    max_running: float
    kv_bytes_per_token: float
    num_layers: int
    link_bytes_per_s: float | None


class RoleRates(msgspec.Struct, frozen=True, kw_only=True):
    """Requests per second that one replica sustains: whole ones, and one phase of each in the pools."""

    alternating: float
    mixed: float
    prefill: float
    decode: float


def role_rates(demand: Demand, site: Site) -> RoleRates:
    """The rates of each role for that demand."""
    load = _Load(demand, site)
    return RoleRates(
        alternating=_largest_rate(lambda rate: load.serves_whole(rate, load.prefill_s)),
        mixed=_largest_rate(lambda rate: load.serves_whole(rate, load.riding_s)),
        prefill=load.prefill_rate(),
        decode=_largest_rate(load.serves_decode),
    )


def guarded_prefill_rate(demand: Demand, site: Site, step_s: float) -> float:
    """Prompts per second of a prefill replica that still has streams of an earlier role, whose decode step takes so
    long: each TPOT target of time holds one, and prefill gets the rest."""
    return _Load(demand, site, max(0.0, 1.0 - step_s / demand.slo.tpot_s)).prefill_rate()


def within(rates: RoleRates, layout: Layout | None) -> RoleRates:
    """The same for a deployment that demands a layout of every request: what is of no use to it carries nothing."""
    none = {"alternating": 0.0, "mixed": 0.0, "prefill": 0.0, "decode": 0.0}
    match layout:
        case None:
            return rates
        case Layout.DISAGGREGATED:
            return RoleRates(**{**none, "prefill": rates.prefill, "decode": rates.decode})
        case Layout.PHASED:
            return RoleRates(**{**none, "alternating": rates.alternating})
        case Layout.COLOCATED:
            return RoleRates(**{**none, "mixed": rates.mixed})


class _Load:
    """The demand in seconds of this fleet's replicas, which prefill for this share of their time."""

    def __init__(self, demand: Demand, site: Site, prefilling: float = 1.0) -> None:
        cost, self._demand, self._site = site.cost, demand, site
        tokens = max(1, round(demand.prompt_tokens))
        long_tokens = max(tokens, round(demand.long_prompt_tokens))
        self._context = demand.sent_tokens + demand.output_tokens / 2
        self.step_s = cost.a0
        self.per_stream_s = cost.a1 + cost.b3 + cost.b2 * self._context
        self.prefill_s = max(LEAST_S, predict_prefill_s(cost, past=0, tokens=tokens, chunk=site.prefill_chunk))
        long_s = predict_prefill_s(cost, past=0, tokens=long_tokens, chunk=site.prefill_chunk)
        self.riding_s = max(LEAST_S, self.prefill_s - cost.a0 * -(-tokens // site.prefill_chunk))
        prefilling = max(LEAST_SHARE, prefilling)
        self.prefill_s, self.riding_s, long_s = (
            each_s / prefilling for each_s in (self.prefill_s, self.riding_s, long_s)
        )
        alone_s = self.step_s + self.per_stream_s
        self.tpot_s = max(demand.slo.tpot_s, OUT_OF_REACH * alone_s)
        self.ttft_s = max(demand.slo.ttft_s, OUT_OF_REACH * self.prefill_s * prefilling)
        # A prompt that is late even alone is nothing to plan for.
        self.long_prefill_s = min(long_s, self.ttft_s / OUT_OF_REACH)

    def serves_whole(self, rate: float, prefill_s: float) -> bool:
        """Whether one replica serves so many whole requests within both targets."""
        busy = rate * prefill_s
        free = 1.0 - busy - rate * self._demand.output_tokens * self.per_stream_s
        if free <= 0.0:
            return False
        streams = rate * self._demand.output_tokens * self.step_s / free
        decode_s = self.step_s + self.per_stream_s * streams
        if decode_s > self.tpot_s * (1.0 - busy) or not self._fits(streams):
            return False
        left = 1.0 - decode_s / self.tpot_s  # of the time, for prefill, while the streams keep their target
        return busy <= BUSIEST * left and self._in_time(busy / left, prefill_s, self.long_prefill_s)

    def serves_decode(self, rate: float) -> bool:
        """Whether one decode replica takes so many sequences in."""
        free = 1.0 - rate * self._demand.output_tokens * self.per_stream_s
        link = self._site.link_bytes_per_s
        if free <= 0.0 or link is None or rate * self._kv_bytes() > BUSIEST * link:
            return False
        streams = rate * self._demand.output_tokens * self.step_s / free
        return self.step_s + self.per_stream_s * streams <= self.tpot_s and self._fits(streams)

    def prefill_rate(self) -> float:
        """Prompts per second of one prefill replica, their KV carried away in time."""
        link = self._site.link_bytes_per_s
        if not link:
            return 0.0
        exposed_s = exposed_transfer_s(self._kv_bytes(), self._site.num_layers, self.prefill_s, link)
        room_s = self.ttft_s - self.long_prefill_s - exposed_s
        if room_s <= 0.0:
            return 0.0
        # M/D/1: a wait of T*u / (2*(1-u)) fits into the room up to this utilisation
        busiest = min(BUSIEST, 2.0 * room_s / (self.prefill_s + 2.0 * room_s))
        return min(busiest / self.prefill_s, BUSIEST * link / self._kv_bytes())

    def _in_time(self, utilisation: float, service_s: float, long_s: float) -> bool:
        """Whether a long prompt behind a mean queue has its first token in time."""
        if utilisation >= 1.0:
            return False
        return long_s + service_s * utilisation / (2.0 * (1.0 - utilisation)) <= self.ttft_s

    def _fits(self, streams: float) -> bool:
        site = self._site
        return streams <= site.max_running and streams * self._context <= BUSIEST * site.kv_tokens

    def _kv_bytes(self) -> float:
        return max(1.0, self._demand.prompt_tokens * self._site.kv_bytes_per_token)


def _largest_rate(sustained: Callable[[float], bool]) -> float:
    """The largest rate that is sustained; what a rate fails on, larger ones fail on, too."""
    low, high = 0.0, 1.0
    while sustained(high) and high < 1e6:
        low, high = high, 2.0 * high
    for _ in range(HALVINGS):
        middle = (low + high) / 2.0
        if sustained(middle):
            low = middle
        else:
            high = middle
    return low

"""What the fleet is asked for: arrivals, lengths and classes of requests as settings, drawn one after the other.

A prompt is a tuple of token ids that no other prompt shares, except for the prefix that it is meant to share: the
scheduler sees token ids and a bound on the output, never the length that the output will have.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from random import Random
from zlib import crc32

import msgspec

from contracts.errors import ConfigError
from contracts.phase import Layout
from contracts.request import Slo
from simulator.arrivals import Arrivals, Gamma
from simulator.bounds import COUNTLESS, bound, bound_all, check_name
from simulator.lengths import MOST_TOKENS, Constant, Lengths
from simulator.traces import MOONCAKE_BLOCK, Trace

EOS = 0
FILLER = 1
_FIRST_OWN = 2
_OWN_IDS = 2**31
_SHARED_IDS = 2**31
MOST_PREFIXES = 1_000_000
MOST_SKEW = 50.0
MOST_PARTS = 100_000
MOST_REQUESTS = 100_000_000
"""Of a run, as many as its rate lets expect or as it is told."""
_MOST_SHARE = 1e9
_MOST_PRIORITY = 1_000_000


class RequestClass(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A kind of request, `share` of all (relative to the other classes)."""

    name: str = "all"
    share: float = 1.0
    key: str = ""
    priority: int = 0
    slo: Slo = Slo()
    layout: Layout | None = None

    def __post_init__(self) -> None:
        """Raises `ConfigError`, naming the setting."""
        check_name("workload.classes.name", self.name)
        check_name("workload.classes.key", self.key)
        bound("workload.classes.share", self.share, most=_MOST_SHARE, above=True)
        bound("workload.classes.priority", self.priority, -_MOST_PRIORITY, _MOST_PRIORITY)
        for name in self.slo.__struct_fields__:
            bound(f"slo.{name}", getattr(self.slo, name), above=True)


class SharedPrefixes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Each prompt begins with one of `count` prefixes of `tokens` tokens (as far as it is long enough). How often
    each is drawn goes with 1 / rank ** `skew`: 0 is evenly, 1 is Zipf's law."""

    count: int
    tokens: int
    skew: float = 0.0

    def __post_init__(self) -> None:
        """Raises `ConfigError`, naming the setting."""
        bound_all(self, "workload.shared.", "count", least=1, most=MOST_PREFIXES)
        bound_all(self, "workload.shared.", "tokens", least=1, most=MOST_TOKENS)
        bound_all(self, "workload.shared.", "skew", most=MOST_SKEW)


class Workload(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`arrivals` with `prompt` and `output` lengths, or a recorded `trace` of all three.

    `max_tokens` is what a client asks for at most; 0: the longest output that the distribution can give, with a trace
    the next power of two above the truth. `max_prompt` cuts what a trace has beyond (tokens; 0: nothing is cut).
    `num_requests` ends the run (0: the scenario's duration does). With `clients` above 1 that many keys take turns.
    Of all these requests one in `parts` comes, by a hash of its number: those of part `part` (`simulator.sharded`).
    """

    arrivals: Arrivals = Gamma(rate=1.0)
    prompt: Lengths = Constant(tokens=256)
    output: Lengths = Constant(tokens=64)
    trace: Trace | None = None
    classes: tuple[RequestClass, ...] = (RequestClass(),)
    shared: SharedPrefixes | None = None
    max_tokens: int = 0
    max_prompt: int = 0
    num_requests: int = 0
    clients: int = 1
    part: int = 0
    parts: int = 1

    def __post_init__(self) -> None:
        """Raises `ConfigError`, naming the setting."""
        if not self.classes:
            raise ConfigError("workload.classes must hold one class or more", param="workload.classes")
        bound_all(self, "workload.", "max_tokens", "max_prompt", most=MOST_TOKENS)
        bound_all(self, "workload.", "num_requests", most=COUNTLESS)
        bound_all(self, "workload.", "clients", least=1, most=MOST_REQUESTS)
        if not 0 <= self.part < self.parts <= MOST_PARTS:
            raise ConfigError(
                f"workload.part must lie between 0 and workload.parts, these be at most {MOST_PARTS}",
                param="workload.part",
            )

    def expected(self, duration_s: float) -> float:
        """About how many requests come in so many seconds, or as many as `num_requests` says. Raises `ConfigError` for
        a trace that cannot be read."""
        if self.num_requests:
            return float(self.num_requests)
        return (self.trace or self.arrivals).expected(duration_s)

    def span_s(self) -> float:
        """About how long it takes until `num_requests` have come; 0 without such a number. Raises as `expected`."""
        return (self.trace or self.arrivals).span_s(self.num_requests) if self.num_requests else 0.0


@dataclass(slots=True, frozen=True)
class Arrival:
    """One request to come. `output_tokens` is the truth that only the engine knows."""

    number: int
    at_s: float
    prompt: tuple[int, ...]
    output_tokens: int
    max_tokens: int
    kind: RequestClass
    key: str
    shares_prefix: bool


def draw(workload: Workload, random: Random, start_s: float = 0.0) -> Iterator[Arrival]:
    """The requests of a run in order of time from `start_s` on, as many as `num_requests` says (0: without end)."""
    classes, shared = workload.classes, workload.shared
    shares = list(accumulate(kind.share for kind in classes))
    ranks = [] if shared is None else list(accumulate(1.0 / (n + 1) ** shared.skew for n in range(shared.count)))
    for number, (at_s, prompt_tokens, output_tokens, hash_ids) in enumerate(_rows(workload, random)):
        if workload.num_requests and number >= workload.num_requests:
            return
        kind = classes[0] if len(classes) == 1 else random.choices(classes, cum_weights=shares)[0]
        size = min(prompt_tokens, workload.max_prompt) if workload.max_prompt else prompt_tokens
        piece_tokens = MOONCAKE_BLOCK
        if shared is not None:
            hash_ids = tuple(random.choices(range(shared.count), cum_weights=ranks))  # noqa: PLW2901
            piece_tokens = shared.tokens
        if workload.parts > 1 and crc32(b"%d" % number) % workload.parts != workload.part:
            continue
        max_tokens = workload.max_tokens or _asked(workload, output_tokens)
        yield Arrival(
            number=number,
            at_s=start_s + at_s,
            prompt=_prompt(number, size, hash_ids, piece_tokens),
            output_tokens=min(output_tokens, max_tokens),
            max_tokens=max_tokens,
            kind=kind,
            key=kind.key if workload.clients == 1 else f"{kind.key or 'client'}-{number % workload.clients}",
            shares_prefix=bool(hash_ids),
        )


def _asked(workload: Workload, output_tokens: int) -> int:
    """What a client would ask for who knows only about how long the answer will be."""
    return workload.output.longest if workload.trace is None else max(16, 1 << (output_tokens - 1).bit_length())


def _rows(workload: Workload, random: Random) -> Iterator[tuple[float, int, int, tuple[int, ...]]]:
    if workload.trace is not None:
        for row in workload.trace.rows():
            yield row.at_s, row.prompt_tokens, row.output_tokens, row.hash_ids
        return
    for at_s in workload.arrivals.times(random):
        yield at_s, workload.prompt.draw(random), workload.output.draw(random), ()


def _prompt(number: int, num_tokens: int, pieces: tuple[int, ...], piece_tokens: int) -> tuple[int, ...]:
    """Shared pieces first, then the request's own token over and over."""
    own = _FIRST_OWN + number % (_OWN_IDS - _FIRST_OWN)
    if not pieces:
        return (own,) * num_tokens
    shared: list[int] = []
    for piece in pieces:
        shared += [_SHARED_IDS + piece % _SHARED_IDS] * piece_tokens
        if len(shared) >= num_tokens:
            break
    del shared[num_tokens:]
    return (*shared, *(own,) * (num_tokens - len(shared)))

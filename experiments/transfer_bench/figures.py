"""What the samples add up to: medians, shares of the yardstick, the formula beside what was measured. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from experiments.transfer_bench.pair import Sample
from scheduling.link_estimate import LinkEstimate
from scheduling.link_math import exposed_transfer_s

DISTURBED_SHARE = 0.10
"""Foreign CPU above this share of all cores: another process was at work, and the sample counts as disturbed."""


@dataclass(frozen=True, slots=True)
class Figures:
    """The medians of some samples of one size."""

    num_bytes: int
    wall_s: float
    giver_cpu_s: float
    taker_cpu_s: float
    foreign_share: float

    @property
    def bytes_per_s(self) -> float:
        """Of whole hand-offs."""
        return self.num_bytes / self.wall_s

    @property
    def giver_cpu_s_per_gb(self) -> float:
        """CPU seconds of the giving process per 10^9 bytes."""
        return self.giver_cpu_s / self.num_bytes * 1e9

    @property
    def taker_cpu_s_per_gb(self) -> float:
        """CPU seconds of the taking process per 10^9 bytes."""
        return self.taker_cpu_s / self.num_bytes * 1e9

    @property
    def cpu_s_per_gb(self) -> float:
        """Both."""
        return self.giver_cpu_s_per_gb + self.taker_cpu_s_per_gb

    @property
    def cores(self) -> float:
        """Cores that both together keep busy while it lasts."""
        return (self.giver_cpu_s + self.taker_cpu_s) / self.wall_s


def foreign_share(sample: Sample, num_cores: int) -> float:
    """Part of all cores that other processes (and the kernel's own threads) took meanwhile."""
    return sample.foreign_cpu_s / (sample.wall_s * num_cores)


def best(samples: Sequence[Sample], wanted: int, num_cores: int) -> list[Sample]:
    """The `wanted` samples that were disturbed least: chosen by foreign CPU, never by result."""
    return sorted(samples, key=lambda sample: foreign_share(sample, num_cores))[:wanted]


def figures(samples: Sequence[Sample], num_cores: int) -> Figures:
    """Medians. Raises `ValueError` without samples or for different sizes."""
    sizes = {sample.num_bytes for sample in samples}
    if len(sizes) != 1:
        raise ValueError(f"samples of one size are needed, not of {sorted(sizes)}")
    return Figures(
        num_bytes=sizes.pop(),
        wall_s=median(sample.wall_s for sample in samples),
        giver_cpu_s=median(sample.giver_cpu_s for sample in samples),
        taker_cpu_s=median(sample.taker_cpu_s for sample in samples),
        foreign_share=median(foreign_share(sample, num_cores) for sample in samples),
    )


@dataclass(frozen=True, slots=True)
class Row:
    """One kind and size on one link, beside the yardstick's samples that were taken in turns with it."""

    link: str
    kind: str
    what: str
    own: Figures
    yardstick: Figures | None
    link_bytes_per_s: float | None = None

    @property
    def share(self) -> float | None:
        """Of the yardstick's rate."""
        return self.own.bytes_per_s / self.yardstick.bytes_per_s if self.yardstick else None

    @property
    def cpu_ratio(self) -> float | None:
        """CPU seconds per byte, both ends, over the yardstick's."""
        return self.own.cpu_s_per_gb / self.yardstick.cpu_s_per_gb if self.yardstick else None

    @property
    def link_share(self) -> float | None:
        """Of what the shaped link can carry."""
        return self.own.bytes_per_s / self.link_bytes_per_s if self.link_bytes_per_s else None


@dataclass(frozen=True, slots=True)
class Hiding:
    """A transfer streamed behind a prefill: what the receiver reported, and what the formula says of it."""

    num_bytes: int
    num_layers: int
    prefill_s: float
    bytes_per_s: float
    latency_s: float
    exposed_s: float
    transfer_s: float

    @property
    def hidden_share(self) -> float:
        """As measured."""
        return hidden_share(self.exposed_s, self.transfer_s)

    @property
    def predicted_exposed_s(self) -> float:
        """The formula of `scheduling.link_math`, with latency."""
        return exposed_transfer_s(self.num_bytes, self.num_layers, self.prefill_s, self.bytes_per_s) + self.latency_s

    @property
    def predicted_hidden_share(self) -> float:
        """The same share by the formula: the transfer begins when the first layer is computed."""
        streamed_s = self.prefill_s * (1.0 - 1.0 / self.num_layers)
        return hidden_share(self.predicted_exposed_s, streamed_s + self.predicted_exposed_s)


def hidden_share(exposed_s: float, transfer_s: float) -> float:
    """Part of a transfer that cost no time, 0 to 1."""
    return 1.0 - min(1.0, exposed_s / transfer_s) if transfer_s > 0.0 else 1.0


@dataclass(slots=True)
class Followed:
    """How the estimate of a link follows its rate: one entry per measurement."""

    estimate: LinkEstimate
    wanted: float
    errors: list[float] = field(default_factory=list)

    def add(self, measured: Sequence[Sequence[float]], now: float) -> None:
        """What one probe or transfer found; without any, the estimate stays what it was."""
        for num_bytes, duration_s in measured:
            self.estimate.add(int(num_bytes), duration_s, now)
        rate = self.estimate.bytes_per_s
        if rate is not None:
            self.errors.append(rate / self.wanted - 1.0)

    def within(self, tolerance: float) -> int | None:
        """After how many measurements the error was within `tolerance`, and stayed so. None: not yet."""
        good = 0
        for error in reversed(self.errors):
            if abs(error) > tolerance:
                break
            good += 1
        return len(self.errors) - good + 1 if good else None

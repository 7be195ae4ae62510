"""The paper's set-ups: clusters, models, data sets and their targets (EcoServe, OSDI'26, §4.1, tables 2 and 4).

Links are what one replica has of its node's card: on L20 one replica a node with 10 Gbit/s; on A800 the four replicas
of two cards (or two of four) share 25 Gbit/s; on H100 they share 8 x 400 Gbit/s. Lengths are lognormal by mean and
median (see `simulator.scenarios`); inputs of Llama-30B are cut to its context of 2048 tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import msgspec

from contracts.request import Slo
from simulator.deployment import Deployment
from simulator.lengths import LogNormal
from simulator.links import BYTES_PER_GBIT
from simulator.scenarios import (
    ALPACA_OUTPUT,
    ALPACA_PROMPT,
    LONGBENCH_OUTPUT,
    LONGBENCH_PROMPT,
    SHAREGPT_OUTPUT,
    SHAREGPT_PROMPT,
)

SHORT_OUTPUT = 512
T = TypeVar("T")


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    """Replicas, cards of each, and bytes per second of network that one replica has, by model."""

    hardware: str
    replicas: Mapping[str, int]
    tp: Mapping[str, int]
    link_bytes_per_s: Mapping[str, float]


def _by_model(small: T, large: T) -> dict[str, T]:
    return {"codellama2-34b": small, "llama-30b": small, "qwen2-72b": large}


def _links(small_gbit_s: float, large_gbit_s: float) -> dict[str, float]:
    return _by_model(small_gbit_s * BYTES_PER_GBIT, large_gbit_s * BYTES_PER_GBIT)


CLUSTERS = {
    "L20": Cluster(
        hardware="l20",
        replicas=_by_model(8, 8),
        tp=_by_model(4, 8),
        link_bytes_per_s=_links(10, 10),
    ),
    "A800": Cluster(
        hardware="a800",
        replicas=_by_model(8, 4),
        tp=_by_model(2, 4),
        link_bytes_per_s=_links(25 / 4, 25 / 2),
    ),
    "H100": Cluster(
        hardware="h100",
        replicas=_by_model(8, 4),
        tp=_by_model(2, 4),
        link_bytes_per_s=_links(3200 / 4, 3200 / 2),
    ),
}


class Data(msgspec.Struct, frozen=True, kw_only=True):
    """Lengths of prompts and outputs in tokens, and the targets that go with them."""

    prompt: LogNormal
    output: LogNormal
    slo: Slo

    def within(self, max_context: int) -> Data:
        """The same where prompt and output together have no more room than that."""
        if self.prompt.most + self.output.most <= max_context:
            return self
        output = msgspec.structs.replace(self.output, most=min(self.output.most, SHORT_OUTPUT))
        prompt = msgspec.structs.replace(self.prompt, most=min(self.prompt.most, max_context - output.most))
        return msgspec.structs.replace(self, prompt=prompt, output=output)


DATA = {
    "ShareGPT": Data(prompt=SHAREGPT_PROMPT, output=SHAREGPT_OUTPUT, slo=Slo(ttft_s=5.0, tpot_s=0.1)),
    "Alpaca": Data(prompt=ALPACA_PROMPT, output=ALPACA_OUTPUT, slo=Slo(ttft_s=1.0, tpot_s=0.1)),
    "LongBench": Data(prompt=LONGBENCH_PROMPT, output=LONGBENCH_OUTPUT, slo=Slo(ttft_s=15.0, tpot_s=0.1)),
}


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """One model on so many replicas of one cluster, under one data set."""

    cluster: str
    model: str
    data: str
    replicas: int

    @property
    def name(self) -> str:
        """In words."""
        return f"{self.model} on {self.replicas} replicas of {self.cluster}, {self.data}"

    @property
    def deployment(self) -> Deployment:
        """One replica."""
        cluster = CLUSTERS[self.cluster]
        return Deployment(model=self.model, hardware=cluster.hardware, tp=cluster.tp[self.model])

    @property
    def load(self) -> Data:
        """What is asked of it."""
        return DATA[self.data].within(self.deployment.max_context)


def setup(cluster: str, model: str, data: str, replicas: int | None = None) -> Setup:
    """The paper's, or with another number of replicas."""
    return Setup(cluster=cluster, model=model, data=data, replicas=replicas or CLUSTERS[cluster].replicas[model])

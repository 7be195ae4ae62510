"""One line of a table: a system on a set-up, scanned, under what else is changed."""

from __future__ import annotations

import msgspec

from contracts.request import Slo
from experiments.ecoserve.capacity import carried, stream_s
from experiments.ecoserve.scan import Budget, Found, at_one_rate, scan
from experiments.ecoserve.setups import Setup
from experiments.ecoserve.systems import rules_of, scenario
from simulator.arrivals import Gamma
from simulator.cost import CostModel
from simulator.scenario import Scenario

TRIED_AT = 0.6
"""In multiples of the estimate: the rate at which one of several ratios is chosen."""
TTFTS = 5.0
"""A run lasts at least so many TTFT targets: a queue that grows slowly must have the time to be seen."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """`system` is the line's name, `rules` what it may be run as (see `TRIED_AT`). `slo`: other targets than the
    data set's. `cv` of the gaps between arrivals. `scattered`: the ring in no order (an ablation). `steps`: rates in
    multiples of the estimate, other than the budget's."""

    setup: Setup
    system: str
    rules: tuple[str, ...] = ()
    slo: Slo | None = None
    cost: CostModel | None = None
    cv: float = 1.0
    scattered: bool = False
    steps: tuple[float, ...] = ()

    def scenario(self, rule: str) -> Scenario:
        """Its rate is set later."""
        load = self.setup.load
        data = load if self.slo is None else msgspec.structs.replace(load, slo=self.slo)
        made = scenario(self.setup, rule, cost=self.cost, data=data)
        workload = msgspec.structs.replace(made.workload, arrivals=Gamma(rate=1.0, cv=self.cv))
        macro = msgspec.structs.replace(made.cluster.macro, scattered=self.scattered)
        cluster = msgspec.structs.replace(made.cluster, macro=macro)
        return msgspec.structs.replace(made, workload=workload, cluster=cluster)

    def run(self, budget: Budget) -> Found:
        """Scan it. Raises `RunFailed`."""
        rules = self.rules or rules_of(self.setup, self.system)
        if self.steps:
            budget = msgspec.structs.replace(budget, steps=self.steps)
        lifetime_s, ttft_s = stream_s(self.setup), (self.slo or self.setup.load.slo).ttft_s
        duration_s = max(budget.duration * lifetime_s, TTFTS * ttft_s)
        estimate = carried(self.setup)
        rule = rules[0]
        if len(rules) > 1:
            rate = TRIED_AT * estimate * min(1.0, budget.steps[-1])
            tried = {
                one: at_one_rate(self.system, one, self.scenario(one), rate, duration_s / 2, budget) for one in rules
            }
            rule = max(tried, key=tried.__getitem__)
        return scan(self.system, rule, self.scenario(rule), estimate, duration_s, budget)

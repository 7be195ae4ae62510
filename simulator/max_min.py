"""Max-min fair rates of flows that share the ingress and egress of hosts, by progressive filling. A pure function.

All flows grow at the same pace until a host's way in or out is full, which fixes the flows on it, or a flow has all it
can use, which fixes that one; the others go on growing. (Bertsekas and Gallager, Data Networks, §6.5.2.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_TINY = 1e-9  # of a rate: rounding


def max_min_rates(
    paths: Sequence[tuple[str, str]], wants: Sequence[float], egress: Mapping[str, float], ingress: Mapping[str, float]
) -> list[float]:
    """Bytes per second of each flow. `paths[i]` is (sending host, receiving host), `wants[i]` what it can use at most
    (infinite for a backlog); `egress` and `ingress` are bytes per second of each host."""
    rates = [0.0] * len(paths)
    full: dict[tuple[str, bool], float] = {}
    users: dict[tuple[str, bool], set[int]] = {}
    for flow, (sender, receiver) in enumerate(paths):
        for way, rate in (((sender, True), egress[sender]), ((receiver, False), ingress[receiver])):
            full[way] = rate
            users.setdefault(way, set()).add(flow)
    left = dict(full)
    open_flows = set(range(len(paths)))
    while open_flows:
        shares = [left[way] / len(flows) for way, flows in users.items() if flows]
        step = max(0.0, min(*shares, *(wants[flow] - rates[flow] for flow in open_flows)))
        for flow in open_flows:
            rates[flow] += step
        fixed = {flow for flow in open_flows if rates[flow] >= wants[flow] * (1.0 - _TINY)}
        for way, flows in users.items():
            if flows:
                left[way] -= step * len(flows)
                if left[way] <= _TINY * full[way]:
                    fixed |= flows
        open_flows -= fixed
        for flows in users.values():
            flows.difference_update(fixed)
    return rates

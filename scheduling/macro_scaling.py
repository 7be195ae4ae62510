"""When a fleet of macro instances should have one replica more or fewer (EcoServe, OSDI'26, §3.4, Eqs. 1 and 2).

Expand when the mean TTFT exceeds S_TTFT: requests that no macro instance admits wait, so TTFT suffers before TPOT.
Contract when the running streams of an n-replica macro instance have saved more than S_TTFT * (n + 1) / n of TPOT on
average: a window could be that much longer than the target lets it be.

Ours, beyond the paper: a prompt that misses its target even on an idle replica is not counted, for no number of
replicas helps it; *every* macro instance must be over Eq. 2, else one with too many could give to one with too few;
one in which no stream ran during the whole window is over it, too; and the mean TTFT must leave room for what the
others have to take over. A macro instance is judged over a whole window without a change of its size.

Nor is TTFT always the first to suffer: near the limit of decode, streams pile up while prompts are still on time. The
decode step d of n replicas in turns keeps TPOT while d <= S_TPOT * (1 - p), where p is the share of their time that
goes into prefill: 1 / n with one of them at a time, more when several are at it. Expand when the mean step is over
`STEP_OVER` of that; contract only while the rest, with all prompts and streams, would stay below `STEP_SPARE` of it.
"""

from __future__ import annotations

from contracts.cluster_io import ProposeReplicas
from contracts.phase import Role
from contracts.request import Slo
from scheduling.cluster_fleet import Fleet
from scheduling.cluster_replica import ReplicaRecord
from scheduling.cluster_requests import RequestRecord
from scheduling.fleet_decisions import FleetDecisions
from scheduling.macro_config import MacroConfig
from scheduling.macro_instances import MacroInstance
from scheduling.window_mean import SLICES, WindowMean

# Names of their own: in Python 3.11 looking a member up in its class takes ten times as long.
_ALTERNATING = Role.ALTERNATING
STEP_OVER = 0.95
STEP_SPARE = 0.7


class _Watched:
    """Saved TPOT and decode step of one macro instance since it has this size, each running stream counted alike."""

    def __init__(self, size: int, now: float, window_s: float) -> None:
        self.size = size
        self.since = now
        self.saved = WindowMean(window_s)
        self.step = WindowMean(window_s)


class MacroScaling:
    """Watches first tokens and slack, and proposes a change at most every `propose_every_s`."""

    def __init__(self, config: MacroConfig, decisions: FleetDecisions) -> None:
        self._config = config
        self._decisions = decisions
        self._ttft = WindowMean(config.window_s)
        self._target = WindowMean(config.window_s)
        self._tpot_target = WindowMean(config.window_s)
        self._prefill = WindowMean(config.window_s)
        self._last_slo = Slo()
        self._watched: dict[str, _Watched] = {}
        self._sampled_at: float | None = None
        self._proposed_at: float | None = None

    def first_token(self, record: RequestRecord, fleet: Fleet, now: float) -> None:
        """The first token of a request on an alternating replica went out at `now`."""
        replica = fleet.get(record.replica_id)
        if replica is not None and replica.view.role is _ALTERNATING:
            self._observe(record, now)

    def gave_up(self, record: RequestRecord, now: float) -> None:
        """A request waited in vain until `now`: a first token that late at best."""
        self._observe(record, now)

    def propose(self, fleet: Fleet, now: float) -> list[ProposeReplicas]:
        """What the fleet should be changed by, if anything. To be asked as time passes."""
        if not len(fleet.macros):
            return []
        if self._sampled_at is None or now >= self._sampled_at + self._config.window_s / SLICES:
            self._sample(fleet, now)
        if self._proposed_at is not None and now < self._proposed_at + self._config.propose_every_s:
            return []
        ttft_s, target_s = self._ttft.mean(now), self._target.mean(now) or self._last_slo.ttft_s
        num_replicas = fleet.macros.num_members
        if ttft_s is not None and ttft_s > target_s:
            requests = self._ttft.weight(now)
            reason = (
                f"mean TTFT {ttft_s:.3f} s over {target_s:.3f} s in {requests:.0f} requests of the last "
                f"{self._config.window_s:.0f} s, with {num_replicas} replicas in {len(fleet.macros)} macro instances"
            )
            numbers = {"ttft_mean_s": ttft_s, "ttft_target_s": target_s, "requests": requests}
            return [self._decide(1, reason, None, now, numbers | {"replicas": num_replicas})]
        slow = self._too_slow(fleet, now)
        if slow is not None:
            reason, numbers = slow
            return [self._decide(1, reason, None, now, numbers)]
        share = (num_replicas - 1) / num_replicas
        if num_replicas > 1 and (ttft_s is None or ttft_s <= target_s * share):
            return self._contract(fleet, now, target_s)
        return []

    def _too_slow(self, fleet: Fleet, now: float) -> tuple[str, dict[str, float]] | None:
        """A macro instance whose decode step does not keep TPOT, in words and numbers."""
        for macro in fleet.macros:
            watched = self._judged(macro, now)
            step_s = None if watched is None else watched.step.mean(now)
            limit_s = STEP_OVER * self._sustained_s(fleet, now, len(macro), leaving=0)
            if step_s is not None and step_s > limit_s:
                reason = f"mean decode step {step_s:.4f} s over {limit_s:.4f} s in {macro.name} with {len(macro)}"
                return reason, {"decode_step_s": step_s, "limit_s": limit_s, "replicas": fleet.macros.num_members}
        return None

    def _sustained_s(self, fleet: Fleet, now: float, size: int, leaving: int) -> float:
        """The longest decode step that keeps TPOT in a macro instance of `size`, less those leaving; one alone is
        counted as two, it has no turns."""
        tpot_s = self._tpot_target.mean(now) or self._last_slo.tpot_s
        replicas = max(1, fleet.macros.num_members - leaving)
        prefilling = self._prefill.weight(now) / (self._config.window_s * replicas)
        return tpot_s * max(0.0, 1.0 - max(prefilling, 1.0 / max(2, size - leaving)))

    def _judged(self, macro: MacroInstance, now: float) -> _Watched | None:
        """What was seen of a macro instance, once it has had its size for a whole window."""
        watched = self._watched.get(macro.name)
        if watched is None or watched.size != len(macro) or now < watched.since + self._config.window_s:
            return None
        return watched

    def _contract(self, fleet: Fleet, now: float, target_s: float) -> list[ProposeReplicas]:
        told, numbers = [], {"ttft_target_s": target_s, "replicas": float(fleet.macros.num_members)}
        for macro in fleet.macros:
            watched = self._judged(macro, now)
            if watched is None:
                return []
            step_s, size = watched.step.mean(now) or 0.0, len(macro)
            if size > 1 and step_s * size / (size - 1) > STEP_SPARE * self._sustained_s(fleet, now, size, leaving=1):
                return []
            saved_s, limit_s = watched.saved.mean(now), target_s * (len(macro) + 1) / len(macro)
            if saved_s is not None and saved_s <= limit_s:
                return []
            saved = "no stream" if saved_s is None else f"{saved_s:.3f} s saved"
            told.append(f"{macro.name} with {len(macro)}: {saved}, limit {limit_s:.3f} s")
            if saved_s is not None:
                numbers["saved_tpot_s"] = min(saved_s, numbers.get("saved_tpot_s", saved_s))
            numbers["limit_s"] = max(limit_s, numbers.get("limit_s", 0.0))
        leaving = _least_busy(fleet, fleet.macros.to_shrink())
        shown = "; ".join(told[:4]) + (f"; {len(told) - 4} more" if len(told) > 4 else "")
        reason = f"more TPOT saved than windows can use ({shown}); {leaving.replica_id} can be spared best"
        return [self._decide(-1, reason, leaving.replica_id, now, numbers)]

    def _decide(
        self, change: int, reason: str, replica_id: str | None, now: float, numbers: dict[str, float]
    ) -> ProposeReplicas:
        self._proposed_at = now
        kind = "propose_more" if change > 0 else "propose_fewer"
        self._decisions.note(now, kind, reason, replica_id, **numbers)
        return ProposeReplicas(change, reason, replica_id)

    def _observe(self, record: RequestRecord, now: float) -> None:
        target_s = record.asked.slo.ttft_s
        if record.prefill_s > target_s:
            return
        self._ttft.add(now, now - record.due_from)
        self._target.add(now, target_s)
        self._tpot_target.add(now, record.asked.slo.tpot_s)
        self._prefill.add(now, 1.0, record.prefill_s)
        self._last_slo = record.asked.slo

    def _sample(self, fleet: Fleet, now: float) -> None:
        self._sampled_at = now
        names = {macro.name for macro in fleet.macros}
        self._watched = {name: watched for name, watched in self._watched.items() if name in names}
        for macro in fleet.macros:
            watched = self._watched.get(macro.name)
            if watched is None or watched.size != len(macro):
                watched = self._watched[macro.name] = _Watched(len(macro), now, self._config.window_s)
            for replica_id in macro.members:
                record = fleet.get(replica_id)
                if record is not None and record.view.running > 0:
                    watched.saved.add(now, record.view.slack_mean_s, record.view.running)
                    watched.step.add(now, record.view.decode_step_s, record.view.running)


def _least_busy(fleet: Fleet, macro: MacroInstance) -> ReplicaRecord:
    """Whom a macro instance can spare best: it has the fewest requests to finish."""
    members = [record for record in map(fleet.get, macro.members) if record is not None]
    return min(members, key=lambda record: (len(record.placed), record.replica_id))

"""How long `ClusterCore.handle` takes: CPU microseconds of one event, by fleet, size and load.

Time advances by a millisecond an event. Replicas report views whose backlog, slack and memory vary from one to the
next; requests differ in length. "light": every stream has slack and little waits; "saturated": no replica may take a
prompt, so requests gather in the pending queue (bounded, a few are refused). Fleets of pools have links between every
prefill replica and `PEERS` decode replicas.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import thread_time_ns

from contracts.cluster_io import ClientRequestArrived, ClusterEvent, ReplicaJoined, TimePassed, ViewReported
from contracts.handoff import LinkView
from contracts.kv import Fingerprint, KVLayout
from contracts.model import ModelSpec
from contracts.phase import Phase, Role
from contracts.request import Slo
from contracts.views import ReplicaIdentity, ReplicaView, StepCost
from scheduling.cluster_core import ClusterCore
from scheduling.config import ClusterCoreConfig

COST = StepCost(a0=0.02, a1=0.0003, b0=0.0, b1=0.0, b2=2e-7, b3=0.0001)
LAYOUT = KVLayout(num_layers=1, num_kv_heads=1, head_dim=8, block_size=16, dtype="float32")
SPEC = ModelSpec(
    name="bench",
    family="llama",
    vocab_size=32,
    hidden_size=8,
    intermediate_size=16,
    num_layers=1,
    num_heads=1,
    num_kv_heads=1,
    head_dim=8,
    rms_norm_eps=1e-5,
    rope_theta=10_000.0,
    max_context=65_536,
    tie_word_embeddings=True,
)
FLEETS = ("alternating", "mixed", "pools")
LOADS = ("light", "saturated")
EVENTS = ("arrival", "view", "time")
PEERS = 32
TICK_S = 0.001


class BenchFleet:
    """A cluster core with `size` replicas, kept alive by views, and a clock of its own."""

    def __init__(self, fleet: str, size: int, saturated: bool) -> None:
        self._fleet, self._size, self._saturated = fleet, size, saturated
        self._core = ClusterCore(ClusterCoreConfig())
        self._now, self._views, self._requests = 0.0, 0, 0
        for index in range(size):
            identity = ReplicaIdentity(
                replica_id=_name(index),
                incarnation="1",
                version="0",
                model=SPEC,
                fingerprint=Fingerprint(model_digest="d", layout=LAYOUT),
                num_blocks=4096,
                max_running=64,
                max_waiting=256,
            )
            self._core.handle(ReplicaJoined(identity, self._view(index)), self._now)
        for _ in range(size):
            self._core.handle(self.view(), self._now)

    def measure(self, make: Callable[[], ClusterEvent], count: int) -> list[float]:
        """CPU microseconds of `count` events; one view comes between two of them, unmeasured."""
        times = []
        for _ in range(count):
            self._now += TICK_S
            self._core.handle(self.view(), self._now)
            event = make()
            began = thread_time_ns()
            self._core.handle(event, self._now)
            times.append((thread_time_ns() - began) / 1e3)
        return times

    @property
    def pending(self) -> int:
        """Requests that wait."""
        return self._core.pending_count

    def view(self) -> ViewReported:
        """The next replica's next view."""
        self._views += 1
        return ViewReported(self._view(self._views % self._size))

    def arrival(self) -> ClientRequestArrived:
        """The next request."""
        self._requests += 1
        return ClientRequestArrived(
            request_id=f"q{self._requests}",
            prompt_tokens=50 + self._requests * 7919 % 900,
            num_sequences=1,
            max_tokens=256,
            slo=Slo(ttft_s=5.0, tpot_s=0.1),
        )

    def time_passed(self) -> TimePassed:
        """The clock's own event."""
        return TimePassed()

    def _role(self, index: int) -> Role:
        if self._fleet == "pools":
            return Role.PREFILL if index % 2 else Role.DECODE
        return Role(self._fleet)

    def _view(self, index: int) -> ReplicaView:
        varied = (self._views * 2654435761 + index * 40503) % 997 / 997
        role = self._role(index)
        running = 0 if role is Role.PREFILL else 8 + int(24 * varied)
        slack_s = 0.0 if self._saturated else 1.0 + 2.0 * varied
        full = self._saturated and role is not Role.ALTERNATING
        links = tuple(
            LinkView(
                peer_id=_name((index + 1 + 2 * i) % self._size),
                peer_incarnation="1",
                bytes_per_s=1e9,
                latency_s=1e-4,
                transfers=8,
                spread=0.1,
                age_s=0.1,
            )
            for i in range(min(PEERS, self._size // 2) if role is Role.PREFILL else 0)
        )
        return ReplicaView(
            replica_id=_name(index),
            incarnation="1",
            role=role,
            phase=Phase.PREFILL if role is Role.PREFILL else Phase.DECODE,
            draining=False,
            lease_left_s=0.0,
            waiting=4 if full else 0,
            waiting_tokens=4000 if full else 0,
            oldest_waiting_s=0.0,
            backlog_s=6.0 if full else 0.2 * varied,
            running=running,
            slack_quantiles_s=(slack_s,) * 11 if running else (),
            slack_mean_s=slack_s,
            decode_step_s=0.02 + 0.0005 * running if running else 0.0,
            free_blocks=3000 - int(500 * varied),
            num_blocks=4096,
            block_size=16,
            cost=COST,
            acked_submit_index=1_000_000_000,
            steps_done=self._views,
            step_age_s=0.0,
            links=links,
        )


def _name(index: int) -> str:
    return f"r{index:05d}"


def quantiles(values: Sequence[float]) -> tuple[float, float]:
    """Median and P99."""
    ordered = sorted(values)
    return ordered[len(ordered) // 2], ordered[int(0.99 * (len(ordered) - 1))]


def report(sizes: Sequence[int], fleets: Sequence[str], count: int) -> None:
    """One line per fleet, size and load."""
    columns = "".join(f"{f'{name} {q}':>13}" for name in EVENTS for q in ("p50", "p99"))
    print(f"{'fleet':<13}{'replicas':>8} {'load':<10}{'pending':>8}{columns}  (cpu us)")
    for fleet in fleets:
        for size in sizes:
            for load in LOADS:
                bench = BenchFleet(fleet, size, saturated=load == "saturated")
                makers: Mapping[str, Callable[[], ClusterEvent]] = {
                    "arrival": bench.arrival,
                    "view": bench.view,
                    "time": bench.time_passed,
                }
                told = [value for name in EVENTS for value in quantiles(bench.measure(makers[name], count))]
                figures = "".join(f"{value:>13.0f}" for value in told)
                print(f"{fleet:<13}{size:>8} {load:<10}{bench.pending:>8}{figures}", flush=True)

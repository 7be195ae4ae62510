"""Prefill leases of several routers: each has turns of its own, and none ends what another one granted."""

from __future__ import annotations

from typing import Any

from contracts import wire
from contracts.replica_io import LeaseGranted, LeaseRevoked


async def test_a_router_takes_back_its_own_lease_only(start_shell: Any, connect_router: Any) -> None:
    """Also one that just came, saw in the view a lease that it never gave, and takes it back."""
    live = start_shell()
    first = await connect_router(live.endpoint, router_id="first")
    second = await connect_router(live.endpoint, router_id="second")
    for router, duration_s in ((first, 1000.0), (second, 0.0), (second, 500.0), (first, 0.0), (second, 0.0)):
        await router.send(wire.Lease(duration_s=duration_s))
        await router.hello()
    given, kept, shorter, others, none = _leases(live)
    assert given == LeaseGranted(1000.0)
    assert all(900.0 < lease.duration_s < 1000.0 for lease in (kept, shorter))
    assert 400.0 < others.duration_s < 500.0
    assert none == LeaseRevoked()


async def test_the_lease_of_a_connection_that_was_replaced_can_be_taken_back(
    start_shell: Any, connect_router: Any
) -> None:
    live = start_shell()
    before = await connect_router(live.endpoint, router_id="one")
    await before.send(wire.Lease(duration_s=1000.0))
    await before.hello()
    after = await connect_router(live.endpoint, router_id="one")
    await after.send(wire.Lease(duration_s=0.0))
    await after.hello()
    assert _leases(live) == [LeaseGranted(1000.0), LeaseRevoked()]


def _leases(live: Any) -> list[Any]:
    return [event for event in live.core.events if isinstance(event, LeaseGranted | LeaseRevoked)]

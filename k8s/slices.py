"""From EndpointSlices to the control endpoints of replicas. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from k8s.objects import Endpoint, EndpointSlice

Endpoints = dict[str, str]
"""Name of the pod (or the address, where none is named) by control endpoint."""


def endpoints_of(slices: Iterable[EndpointSlice], port_name: str) -> Endpoints:
    """All endpoints that are ready and stay, each once, though several slices (two Services, a move) may hold it.

    Readiness that is not told counts as ready, as the API says. A port whose slice has a single one needs no name.
    """
    found: Endpoints = {}
    for piece in slices:
        port = _port(piece, port_name)
        if port is None:
            continue
        for endpoint in piece.endpoints or ():
            if endpoint.addresses and _stays(endpoint):
                address = endpoint.addresses[0]
                host = f"[{address}]" if ":" in address else address
                target = endpoint.target_ref
                found[f"tcp://{host}:{port}"] = target.name if target is not None and target.name else address
    return found


def _port(piece: EndpointSlice, name: str) -> int | None:
    ports = [port for port in piece.ports or () if port.port]
    named = [port for port in ports if port.name == name]
    if not named and len(ports) == 1 and not ports[0].name:
        named = ports
    return named[0].port if named else None


def _stays(endpoint: Endpoint) -> bool:
    conditions = endpoint.conditions
    return conditions is None or (conditions.ready is not False and not conditions.terminating)

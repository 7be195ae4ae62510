"""Who may change the fleet: whoever knows the admin token, or without one, programs on this machine."""

from __future__ import annotations

import hmac
import ipaddress

from starlette.requests import Request

from contracts.errors import Forbidden

_FORWARDED = ("forwarded", "x-forwarded-for", "x-real-ip")


def require_operator(request: Request, admin_token: str) -> None:
    """Raises `Forbidden`, saying what is wanting.

    Without a token a browser is turned away even on this machine (it names the page's origin): any page that somebody
    opens there could send such a request. So is what a proxy forwards: everybody's requests come from its address.
    """
    if admin_token:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(token.strip().encode(), admin_token.encode()):
            raise Forbidden("this endpoint wants the admin token: Authorization: Bearer ...")
        return
    if not _is_loopback(request) or any(name in request.headers for name in _FORWARDED):
        raise Forbidden("without router.admin_token only clients on the router's own machine may do this")
    if "origin" in request.headers:
        raise Forbidden("without router.admin_token no web page may do this")


def _is_loopback(request: Request) -> bool:
    if request.client is None:
        return False
    try:
        address = ipaddress.ip_address(request.client.host)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback

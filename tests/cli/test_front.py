"""The front door's address: judged before anything is loaded, and put into a URL that works."""

from __future__ import annotations

import socket

import httpx
import pytest

from cli.front import front_url, require_free
from contracts.errors import ConfigError


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:80"),
        ("localhost", "http://localhost:80"),
        ("0.0.0.0", "http://127.0.0.1:80"),
        ("::", "http://[::1]:80"),
        ("::1", "http://[::1]:80"),
        ("fe80::1", "http://[fe80::1]:80"),
    ],
)
def test_every_kind_of_host_makes_a_url(host: str, url: str) -> None:
    assert front_url(host, 80) == url
    httpx.URL(url)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_port_that_somebody_listens_on_is_refused_and_a_free_one_is_not(host: str) -> None:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as taken:
        taken.bind((host, 0))
        port = taken.getsockname()[1]
        taken.listen()
        with pytest.raises(ConfigError, match=str(port)):
            require_free(host, port)
    require_free(host, port)


@pytest.mark.parametrize("host", ["203.0.113.7", "no.such.host.invalid", ""])
def test_an_address_that_is_not_ours_is_refused(host: str) -> None:
    if host:
        with pytest.raises(ConfigError, match=host):
            require_free(host, 18000)
    with pytest.raises(ConfigError, match="port 0"):
        require_free(host, 0)

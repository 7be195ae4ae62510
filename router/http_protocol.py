"""uvicorn's HTTP/1.1 protocol, with requests to upgrade the connection answered as the plain requests they also are."""

from __future__ import annotations

from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_OF_UPGRADE = frozenset({b"upgrade", b"http2-settings"})


class PlainHttpProtocol(HttpToolsProtocol):
    """Ignores `Upgrade`, as RFC 9110 (7.8) allows.

    Java's HttpClient and `curl --http2` offer h2c with every first request. httptools takes all that follows the head
    of such a request for the new protocol's; uvicorn drops it, and a POST would have no body. Here the head is
    written anew without the offer and parsed again, before anything saw the request; the body follows it.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._plain_head: bytes | None = None

    def data_received(self, data: bytes) -> None:
        """Raises nothing: what is not HTTP is answered with 400."""
        self._unset_keepalive_if_required()
        rest: memoryview | None = memoryview(data)
        while rest:
            rest = self._feed(rest)

    def _feed(self, data: memoryview) -> memoryview | None:
        """What is still to be parsed: what follows the head of a request with an offer."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            head, self._plain_head = self._plain_head, None
            if head is not None:
                self._feed(memoryview(head))
                return None if self.transport.is_closing() else data[upgrade.args[0] :]
            self._refuse()  # CONNECT
        except httptools.HttpParserError:
            self._refuse()
        return None

    def _refuse(self) -> None:
        self.send_400_response("Invalid HTTP request received.")

    def on_headers_complete(self) -> None:
        """Holds the request back if it comes with an offer."""
        if not self.parser.should_upgrade():
            super().on_headers_complete()
        elif self.parser.get_method() != b"CONNECT":
            self._plain_head = self._without_offer()

    def on_body(self, body: bytes) -> None:
        """Only of requests that were not held back."""
        if not self.parser.should_upgrade():
            super().on_body(body)

    def on_message_complete(self) -> None:
        """Only of requests that were not held back."""
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def _without_offer(self) -> bytes:
        version = self.parser.get_http_version().encode()
        lines = [self.parser.get_method() + b" " + self.url + b" HTTP/" + version]
        for name, value in self.headers:
            if name == b"connection":
                options = [option.strip() for option in value.split(b",")]
                value = b", ".join(option for option in options if option.lower() not in _OF_UPGRADE)  # noqa: PLW2901
            if name not in _OF_UPGRADE and (value or name != b"connection"):
                lines.append(name + b": " + value)
        return b"\r\n".join([*lines, b"", b""])

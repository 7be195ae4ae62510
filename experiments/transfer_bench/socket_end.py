"""The yardstick: a plain blocking socket that moves the same spans in messages of the same size, and nothing else.

Both ends use gathered calls straight from and into their pools; the taker lets the kernel fill a whole message. With
`tls`, the same through OpenSSL, which can neither gather nor scatter. `python -m ...socket_end`.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Sequence

from experiments.transfer_bench.end import Answer, PoolEnd, messages, serve

PIECES = 1024
WAIT_S = 20.0


def send_all(sock: socket.socket, views: list[memoryview]) -> None:
    """All of these, in order."""
    if isinstance(sock, ssl.SSLSocket):
        for view in views:
            sock.sendall(view)
        return
    while views:
        count = sock.sendmsg(views[:PIECES])
        views = rest(views, count)


def receive_all(sock: socket.socket, views: list[memoryview]) -> None:
    """Fill all of these, in order. Raises `ConnectionError` when the giver ends before."""
    while views:
        if isinstance(sock, ssl.SSLSocket):
            count = sock.recv_into(views[0])
        else:
            count = sock.recvmsg_into(views[:PIECES], 0, socket.MSG_WAITALL)[0]
        if not count:
            raise ConnectionError("the giver closed the connection")
        views = rest(views, count)


def rest(views: list[memoryview], count: int) -> list[memoryview]:
    """What is left of the views when `count` bytes are gone."""
    index = 0
    while count and count >= len(views[index]):
        count -= len(views[index])
        index += 1
    left = views[index:]
    if count:
        left[0] = left[0][count:]
    return left


class SocketEnd(PoolEnd):
    """Either end; which one follows from the commands."""

    def __init__(self) -> None:
        super().__init__()
        self._listener: socket.socket | None = None
        self._sock: socket.socket | None = None
        self._table: Sequence[int] = ()
        self._tls: Sequence[str] = ()

    def open(self, shape: list[int], seed: int, options: Answer) -> Answer:
        """Make the pool and listen on `options.host`. `options.tls`: certificate, key and authority, or empty."""
        self.make_pool(shape, seed)
        self._tls = options["tls"]
        self._listener = socket.create_server((options["host"], 0))
        return {"host": options["host"], "port": self._listener.getsockname()[1]}

    def connect(self, host: str, port: int) -> Answer:
        """Giver: connect to the taker."""
        sock = socket.create_connection((host, port), timeout=WAIT_S)
        if self._tls:
            context = ssl.create_default_context(cafile=self._tls[2])
            context.check_hostname = False
            sock = context.wrap_socket(sock)
        self._sock = self._tuned(sock)
        return {}

    def accept(self, host: str, port: int) -> Answer:
        """Taker: let the giver in, whatever it listens on itself."""
        assert self._listener is not None
        sock, _ = self._listener.accept()
        if self._tls:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(self._tls[0], self._tls[1])
            sock = context.wrap_socket(sock, server_side=True)
        self._sock = self._tuned(sock)
        return {}

    def take(self, table: list[int]) -> Answer:
        """The taker's blocks of the next hand-off."""
        self.meter.start()
        self._table = table
        return {}

    def taken(self) -> Answer:
        """Take them."""
        assert self._sock is not None
        for message in messages(self.shape.spans(self._table)):
            receive_all(self._sock, self.views(message))
        return self.meter.stop()

    def give(self, table: list[int], ticket: Answer) -> Answer:
        """Send the giver's blocks."""
        assert self._sock is not None
        self.meter.start()
        for message in messages(self.shape.spans(table)):
            send_all(self._sock, self.views(message))
        return self.meter.stop()

    def _tuned(self, sock: socket.socket) -> socket.socket:
        sock.settimeout(None)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock


if __name__ == "__main__":
    serve(SocketEnd())

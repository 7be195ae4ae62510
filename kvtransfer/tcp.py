"""The `tcp` transport: plain sockets, always there. Optionally encrypted; the only transport that can be.

`kvtransfer.put_stream` says what goes over a connection, `tcp_sender` and `tcp_receiver` are its two ends.
"""

from __future__ import annotations

import asyncio
import socket

from kvtransfer.interfaces import interface_of
from kvtransfer.protocol import Admit, OnLanded, TransferError
from kvtransfer.sockets import family_of, parse_endpoint, tune
from kvtransfer.tcp_channels import PlainChannel, TcpChannel, TlsChannel
from kvtransfer.tcp_receiver import TcpReceiver
from kvtransfer.tcp_sender import TcpSender
from kvtransfer.tls import TlsFiles, client_context, server_context


class TcpTransport:
    """`host`: the address to listen on. `silence_s`: a connection with work that does not move for so long is ended.

    Raises `ConfigError` when the TLS files cannot be used.
    """

    scheme = "tcp"

    def __init__(self, host: str, *, silence_s: float = 5.0, tls: TlsFiles | None = None) -> None:
        self._host = host
        self._silence_s = silence_s
        self._server_tls = server_context(tls) if tls is not None else None
        self._client_tls = client_context(tls) if tls is not None else None

    def unavailable(self) -> str | None:
        """Never: the standard library is enough."""
        return None

    def receiver(self, memory: memoryview, on_landed: OnLanded, admit: Admit) -> TcpReceiver:
        """See the protocol."""
        return TcpReceiver(memory, on_landed, admit, host=self._host, silence_s=self._silence_s, tls=self._server_tls)

    async def connect(self, endpoint: str, token: bytes, memory: memoryview, deadline_s: float) -> TcpSender:
        """See the protocol."""
        host, port = parse_endpoint(endpoint, self.scheme)
        sock = socket.socket(family_of(host), socket.SOCK_STREAM)
        sock.setblocking(False)
        channel: TcpChannel | None = None
        done = False
        try:
            async with asyncio.timeout(deadline_s):
                tune(sock, self._silence_s)
                await asyncio.get_running_loop().sock_connect(sock, (host, port))
                device = interface_of(sock.getsockname()[0]) or "unknown"
                channel = await self._channel(sock)
                sender = TcpSender(channel, device)
                await sender.introduce(token)
            done = True
            return sender
        except TimeoutError:
            raise TransferError(f"{endpoint} did not answer within {deadline_s:g} s") from None
        except OSError as error:
            raise TransferError(f"cannot connect to {endpoint}: {str(error) or type(error).__name__}") from error
        finally:
            if not done:
                if channel is not None:
                    channel.abort()
                sock.close()

    async def _channel(self, sock: socket.socket) -> TcpChannel:
        if self._client_tls is None:
            return PlainChannel(sock, self._silence_s)
        _, channel = await asyncio.get_running_loop().create_connection(
            lambda: TlsChannel(self._silence_s), sock=sock, ssl=self._client_tls, server_hostname=""
        )
        return channel

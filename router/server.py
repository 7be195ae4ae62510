"""The router as a process: one event loop, one port, a clean end."""

from __future__ import annotations

import contextlib
import gc
import logging
import resource
import signal
import socket
import ssl
import threading
from collections.abc import Generator

import uvicorn
from fastapi import FastAPI

from contracts.discovery import Discovery
from contracts.errors import ConfigError
from router.app import build_app
from router.config import RouterConfig
from router.http_protocol import PlainHttpProtocol

KEEP_ALIVE_S = 75
"""Longer than clients keep idle connections: else they send into one that is just being closed."""

GC_ALLOCATIONS = 20_000
"""Allocations beyond deallocations between two runs of the garbage collector."""

MAX_FILES = 65_536

log = logging.getLogger("phaseserve.router")


class _Server(uvicorn.Server):
    """SIGTERM and SIGINT begin a drain that ends with exit code 0; a second one ends it early."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """uvicorn raises the signal again after the drain, which would end the process with that signal instead."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: object) -> None:
        log.info("%s: no new connections; running requests go on to their end", signal.Signals(number).name)
        self.force_exit = self.should_exit
        self.should_exit = True


def run_router(config: RouterConfig, discovery: Discovery | None = None) -> int:
    """Serve until SIGTERM or SIGINT; the exit code. Raises `ModelError` or `ConfigError` before the port is bound."""
    broken = threading.Event()

    def stop_broken() -> None:
        broken.set()
        server.should_exit = True

    app = build_app(config, on_broken=stop_broken, discovery=discovery)
    server = _server(config, app)
    _check_certificate(config)
    _spare_the_collector()
    _allow_many_files()
    with _listener(config) as listener:
        log.info("listening on %s://%s:%d", "https" if config.tls_cert else "http", *listener.getsockname()[:2])
        server.run(sockets=[listener])
    return 1 if broken.is_set() or not server.started else 0


def _spare_the_collector() -> None:
    """What was built at start stays for good; looking through it again and again would hold every stream up."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_ALLOCATIONS, 20, 50)


def _check_certificate(config: RouterConfig) -> None:
    """Raises `ConfigError` naming the file: uvicorn would only say so when it serves already."""
    if not config.tls_cert:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(config.tls_cert, config.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"tls_cert {config.tls_cert} with its tls_key: {error}", param="tls_cert") from error


def _allow_many_files() -> None:
    """Hundreds of replicas and thousands of clients take more file descriptors than the usual soft limit allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_FILES if hard == resource.RLIM_INFINITY else min(MAX_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _listener(config: RouterConfig) -> socket.socket:
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if config.shards > 1:  # the kernel deals connections out among the routers
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        listener.bind((config.host, config.port))
    except OSError as error:
        listener.close()
        raise ConfigError(f"cannot listen on {config.host}:{config.port}: {error.strerror}", param="port") from error
    return listener


def _server(config: RouterConfig, app: FastAPI) -> _Server:
    settings = uvicorn.Config(
        app,
        loop="uvloop",
        http=PlainHttpProtocol,
        ws="none",
        access_log=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        log_config=None,
        lifespan="on",
        timeout_graceful_shutdown=int(config.drain_s),
        ssl_certfile=config.tls_cert or None,
        ssl_keyfile=config.tls_key or None,
    )
    return _Server(settings)

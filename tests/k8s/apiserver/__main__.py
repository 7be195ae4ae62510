"""`python -m tests.k8s.apiserver --port 0 [--token TOKEN=USER ...] [--cert C --key K] [--journal FILE]`.

Prints `READY http(s)://127.0.0.1:PORT` once it listens. The user `admin` may do everything.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import ssl
from pathlib import Path

from aiohttp import web

from tests.k8s.apiserver.server import Server
from tests.k8s.apiserver.storage import Store


async def serve(arguments: argparse.Namespace) -> None:
    """Until SIGTERM."""
    tokens = dict(pair.split("=", 1) for pair in arguments.token) if arguments.token else None
    server = Server(Store(arguments.journal), tokens, arguments.bookmark_s)
    tls = None
    if arguments.cert:
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(arguments.cert, arguments.key)
    runner = web.AppRunner(server.app(), shutdown_timeout=0.2, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", arguments.port, ssl_context=tls)
    await site.start()
    port = runner.addresses[0][1]
    print(f"READY {'https' if tls else 'http'}://127.0.0.1:{port}", flush=True)
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    await stopped.wait()
    await runner.cleanup()


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--token", action="append", metavar="TOKEN=USER")
    parser.add_argument("--cert")
    parser.add_argument("--key")
    parser.add_argument("--journal", type=Path, help="objects and history outlive the process there")
    parser.add_argument("--bookmark-s", type=float, default=5.0)
    asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()

"""TLS for the data plane, mutual: every member shows a certificate that the fleet's own authority signed.

The authority is private to the fleet, so a valid certificate is the proof and names are not compared: replicas are
reached by address, and addresses change. The fleet's secret is demanded on top (`kvtransfer.auth`).
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from contracts.errors import ConfigError


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files: this member's certificate (chain) and key, and the authority that signs the members' certificates."""

    cert: str
    key: str
    ca: str


def server_context(files: TlsFiles) -> ssl.SSLContext:
    """For the side that listens. Raises `ConfigError` naming the file that cannot be used."""
    return _context(ssl.PROTOCOL_TLS_SERVER, files)


def client_context(files: TlsFiles) -> ssl.SSLContext:
    """For the side that connects (with `server_hostname=""`). Raises `ConfigError`."""
    return _context(ssl.PROTOCOL_TLS_CLIENT, files)


def _context(protocol: int, files: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_cert_chain(files.cert, files.key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"cannot use {files.cert} with {files.key}: {error}", param="tls_cert") from error
    try:
        context.load_verify_locations(files.ca)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"cannot use {files.ca}: {error}", param="tls_ca") from error
    return context

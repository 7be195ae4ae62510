"""What a transfer service has counted since its start. Written on its loop, read from anywhere."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class TransferCounters:
    """`received`/`lost` and `bytes_in` at the receiving side, `sent`/`send_failed` and `bytes_out` at the sending side.

    `checksum_errors` counts hand-offs that arrived changed, `repeated_puts` puts that landed twice and were the same,
    `refused_tickets` ids that are unknown or were used, `refused_connections` control connections
    that were turned away.
    """

    received: int = 0
    lost: int = 0
    bytes_in: int = 0
    checksum_errors: int = 0
    repeated_puts: int = 0
    refused_tickets: int = 0
    refused_connections: int = 0
    sent: int = 0
    send_failed: int = 0
    bytes_out: int = 0

"""Our ends: a `TransferService` each. A hand-off is one ticket: reserved, streamed, verified, committed."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from contracts.handoff import KVTicket, Peer
from contracts.kv import DTYPE_BYTES, Fingerprint, KVLayout
from experiments.transfer_bench.end import Answer, PoolEnd, serve
from kvtransfer.config import TransferConfig
from kvtransfer.events import Linked, Lost, Measured, Received, SendFailed, Sent, TransferEvent, Unlinked
from kvtransfer.service import TransferService
from kvtransfer.ucx_settings import UcxSettings

START_S = 20.0
LINK_S = 30.0
HANDOFF_S = 120.0
CLOSE_S = 5.0
BLOCK_SIZE = 16
TAKER_ID, GIVER_ID = "taker", "giver"

_Event = TypeVar("_Event", bound=TransferEvent)


def layout_of(num_layers: int, block_bytes: int) -> KVLayout:
    """A layout whose block of `BLOCK_SIZE` tokens has so many bytes per layer."""
    head_dim = block_bytes // (2 * BLOCK_SIZE * DTYPE_BYTES["bfloat16"])
    return KVLayout(num_layers=num_layers, num_kv_heads=1, head_dim=head_dim, block_size=BLOCK_SIZE, dtype="bfloat16")


class Happenings:
    """The events of one service, to wait for. `at`: when each came, by the clock that all processes share."""

    def __init__(self) -> None:
        self.events: list[tuple[float, TransferEvent]] = []
        self._changed = threading.Condition()

    def add(self, event: TransferEvent) -> None:
        """On the service's thread."""
        with self._changed:
            self.events.append((time.monotonic(), event))
            self._changed.notify_all()

    def until(self, kind: type[_Event], ticket_id: str | None, deadline_s: float) -> tuple[float, _Event]:
        """The newest event of this kind (and ticket). Raises `RuntimeError` when the hand-off or the link failed."""
        end = time.monotonic() + deadline_s
        with self._changed:
            while True:
                for at, event in reversed(self.events):
                    named: Any = getattr(event, "ticket_id", None)
                    if ticket_id is None or named == ticket_id:
                        if isinstance(event, kind):
                            return at, event
                        if isinstance(event, Lost | SendFailed | Unlinked):
                            raise RuntimeError(f"{event}")
                if time.monotonic() > end:
                    raise RuntimeError(f"no {kind.__name__} within {deadline_s:g} s; last: {self.events[-3:]}")
                self._changed.wait(0.2)

    def forget(self) -> None:
        """What came so far."""
        with self._changed:
            self.events.clear()


class ServiceEnd(PoolEnd):
    """Either end; which one follows from the commands."""

    def __init__(self) -> None:
        super().__init__()
        self.happenings = Happenings()
        self.service: TransferService | None = None
        self._ticket_id = ""

    def open(self, shape: list[int], seed: int, options: Answer) -> Answer:
        """Make the pool and start the service. `options`: host, transport, fabric (of UCX), tls, taker, settings."""
        self.make_pool(shape, seed)
        layout = layout_of(self.shape.num_layers, self.shape.block_bytes)
        return self.start(Fingerprint(model_digest="bench", layout=layout), options)

    def start(self, fingerprint: Fingerprint, options: Answer) -> Answer:
        """Start the service over `pool`. Returns what the peer has to know."""
        certificate, key, authority = options["tls"] or ("", "", "")
        config = TransferConfig(
            enabled=True,
            transport=options["transport"],
            host=options["host"],
            secret="the secret of a bench",
            tls_cert=certificate,
            tls_key=key,
            tls_ca=authority,
            ucx=UcxSettings(fabric=options["fabric"]),
            **options.get("settings", {}),
        )
        self.identity = (TAKER_ID if options["taker"] else GIVER_ID, "1", fingerprint)
        blocks = self.shape.num_blocks
        self.service = TransferService(config, self.identity, self.pool, blocks, self.happenings.add)
        endpoints = self.service.start(START_S)
        name, incarnation, _ = self.identity
        peer = Peer(replica_id=name, incarnation=incarnation, endpoints=endpoints, fingerprint=fingerprint)
        return {"peer": msgspec.to_builtins(peer)}

    def connect(self, peer: Answer) -> Answer:
        """Giver: link up, and wait for the probe at join. Returns transport, device and what the probe found."""
        self._service.set_peers([msgspec.convert(peer, Peer)])
        linked_at, linked = self.happenings.until(Linked, None, LINK_S)
        measured_at, measured = self.happenings.until(Measured, None, LINK_S)
        return {
            "transport": linked.transport,
            "device": linked.device,
            "latency_s": linked.latency_s,
            "bytes_per_s": measured.num_bytes / measured.duration_s,
            "probe_s": measured_at - linked_at,
        }

    def accept(self, peer: Answer) -> Answer:
        """Taker: nothing to do, links are made from the other side."""
        return {}

    def take(self, table: list[int]) -> Answer:
        """Reserve these blocks; returns the ticket."""
        self.happenings.forget()
        self.meter.start()
        return {"ticket": msgspec.to_builtins(self.reserve(table, len(table) * BLOCK_SIZE, BLOCK_SIZE))}

    def reserve(self, table: Sequence[int], num_tokens: int, block_size: int) -> KVTicket:
        """A ticket for these blocks, whose slot is open."""
        ticket = KVTicket(
            ticket_id=secrets.token_hex(16),
            receiver_id=TAKER_ID,
            receiver_incarnation="1",
            num_tokens=num_tokens,
            skip_tokens=0,
            blocks=tuple(table),
            block_size=block_size,
        )
        self._ticket_id = ticket.ticket_id
        self._service.reserve(ticket, GIVER_ID)
        return ticket

    def taken(self) -> Answer:
        """Wait until all of it is there and verified."""
        at, received = self.happenings.until(Received, self._ticket_id, HANDOFF_S)
        report = received.report
        return {
            **self.meter.stop(at),
            "exposed_s": report.exposed_s,
            "transfer_s": report.transfer_s,
            "hidden_share": report.hidden_share,
        }

    def give(self, table: list[int], ticket: Answer) -> Answer:
        """Hand over what is all computed already, and wait for the acknowledgement."""
        self.happenings.forget()
        self.meter.start()
        one = msgspec.convert(ticket["ticket"], KVTicket)
        self._service.send(one, table, one.num_tokens)
        self._service.commit(one.ticket_id, b"")
        at, _ = self.happenings.until(Sent, one.ticket_id, HANDOFF_S)
        return {**self.meter.stop(at), **self.measured()}

    def measured(self) -> Answer:
        """What the link was found to carry with this hand-off, if anything."""
        found = [event for _, event in self.happenings.events if isinstance(event, Measured)]
        return {"measured": [[event.num_bytes, event.duration_s] for event in found]}

    def probe(self, num_bytes: int) -> Answer:
        """Measure the link once more."""
        self.happenings.forget()
        self._service.probe(TAKER_ID, num_bytes)
        self.happenings.until(Measured, None, LINK_S)
        return self.measured()

    def close(self) -> None:
        """End the service."""
        if self.service is not None:
            self.service.close(CLOSE_S)

    @property
    def _service(self) -> TransferService:
        assert self.service is not None
        return self.service


if __name__ == "__main__":
    serve(ServiceEnd())

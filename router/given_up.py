"""What the core, and perhaps a client, is told when a replica ends a request without an answer."""

from __future__ import annotations

from contracts.errors import Cancelled, ErrorInfo, Unavailable
from contracts.replica_io import SequenceOutput
from contracts.request import FinishReason


def given_up(replica_id: str | None, output: SequenceOutput) -> ErrorInfo | None:
    """None while a sequence goes on or has ended well.

    Nobody asks a replica to cancel what is still known here: its CANCELLED is a request given up (503), whatever
    error comes with it, never "the client left".
    """
    match output.finish:
        case FinishReason.ERROR:
            return own_words(replica_id, output.error)
        case FinishReason.CANCELLED:
            return own_words(replica_id, None)
    return None


def own_words(replica_id: str | None, error: ErrorInfo | None) -> ErrorInfo:
    """`error`, unless there is none or it tells the client, who is waiting, that the client left."""
    if error is None or error.status == Cancelled.status or error.code == Cancelled.code:
        return Unavailable(f"replica {replica_id} gave the request up").info()
    return error

"""What an answer's headers tell: the request's id, where it ran, and why. Errors of placed requests tell it too."""

from __future__ import annotations

from starlette.requests import Request

from router.call import Call

REASON_CHARS = 200


def answer_headers(call: Call, client_id: str) -> dict[str, str]:
    """As known now: a stream's headers leave with its first token, what happens later is in `/decisions`."""
    headers = {"x-request-id": client_id}
    plan = call.flights[0].plan if call.flights else None
    if plan is not None:
        headers["x-phaseserve-layout"] = plan.layout.value
        headers["x-phaseserve-replica"] = _header_text(plan.replica_id)
        if plan.prefill_replica_id is not None:
            headers["x-phaseserve-prefill-replica"] = _header_text(plan.prefill_replica_id)
        if plan.fallback is not None:
            headers["x-phaseserve-fallback"] = _header_text(plan.fallback)
        headers["x-phaseserve-reason"] = _header_text(plan.reason)
        if plan.cached_tokens > 0:
            headers["x-phaseserve-predicted-cached-tokens"] = str(plan.cached_tokens)
        headers["x-phaseserve-predicted-ttft-s"] = f"{plan.prediction.ttft_s:.4f}"
    return headers


def keep_headers(request: Request, call: Call, client_id: str) -> None:
    """For whoever answers with an error in the end."""
    request.state.answer_headers = answer_headers(call, client_id)


def kept_headers(request: Request) -> dict[str, str]:
    """Those of `keep_headers`; none when the request was never placed."""
    kept: dict[str, str] = getattr(request.state, "answer_headers", {})
    return kept


def _header_text(text: str) -> str:
    return "".join(char if " " <= char <= "~" else "?" for char in text[:REASON_CHARS])

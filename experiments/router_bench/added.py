"""From the tap's notes and the client's times: what the router added, request by request and token by token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from contracts import wire
from experiments.router_bench.streams import Seen
from experiments.router_bench.tap import Passed


@dataclass(slots=True)
class AtTap:
    """One sequence at the tap: when it was submitted, and when each of its tokens came back."""

    submitted_s: float
    tokens: list[tuple[float, int]] = field(default_factory=list)


@dataclass(slots=True)
class Added:
    """Seconds. `before_s` from the client's sending to the submission at the tap, `first_s` and `later_s` from a token
    at the tap to its text at the client, `ttft_s` the sum of before and first. The tokens of one step pass the tap in
    one frame; `step_first_s` and `step_last_s` are the least and the most of `later_s` in each frame."""

    before_s: list[float] = field(default_factory=list)
    first_s: list[float] = field(default_factory=list)
    later_s: list[float] = field(default_factory=list)
    ttft_s: list[float] = field(default_factory=list)
    step_first_s: list[float] = field(default_factory=list)
    step_last_s: list[float] = field(default_factory=list)


def read_tap(passed: Sequence[Passed], name_length: int) -> dict[str, AtTap]:
    """What passed, by the client's own request name: the last `name_length` characters of the sequence id."""
    sequences: dict[str, AtTap] = {}
    for item in passed:
        if item.to_replica:
            message = wire.decode_router_message(item.frame)
            for request in message.requests if isinstance(message, wire.Submit) else ():
                sequences[request.request_id[-name_length:]] = AtTap(item.at_s)
        else:
            answer = wire.decode_replica_message(item.frame)
            for output in answer.outputs if isinstance(answer, wire.Outputs) else ():
                known = sequences[output.request_id[-name_length:]]
                known.tokens += [(item.at_s, token) for token in output.token_ids]
    return sequences


def added_by_router(seen: Sequence[Seen], tap: dict[str, AtTap], text_of: Callable[[list[int]], str]) -> Added:
    """Match each text event with the token that completed its text (`text_of` decodes token ids).

    A token that ends inside a character gives no text of its own; the event then belongs to the token that does.
    """
    added = Added()
    steps: dict[float, list[float]] = {}
    for request in seen:
        known = tap[request.name]
        ids = [token for _, token in known.tokens]
        texts = [text_of(ids[: i + 1]) for i in range(len(ids))]
        i = 0
        for number, (at_s, text) in enumerate(request.events):
            while i < len(texts) - 1 and not texts[i].startswith(text):
                i += 1
            late_s = at_s - known.tokens[i][0]
            if number == 0:
                before_s = known.submitted_s - request.sent_s
                added.before_s.append(before_s)
                added.first_s.append(late_s)
                added.ttft_s.append(before_s + late_s)
            else:
                added.later_s.append(late_s)
                steps.setdefault(known.tokens[i][0], []).append(late_s)
    added.step_first_s = [min(late) for late in steps.values()]
    added.step_last_s = [max(late) for late in steps.values()]
    return added

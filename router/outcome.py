"""What came of one flight, from the times at which its tokens arrived at this router."""

from __future__ import annotations

from contracts.handoff import HandoffReport
from contracts.plan import Outcome
from contracts.request import FinishReason
from router.flight import Flight, SequenceTrack


def tpot_s(track: SequenceTrack) -> float | None:
    """Mean time per output token after the first, switch wait included; None below two tokens."""
    if track.first_s is None or track.num_tokens < 2:
        return None
    return (track.last_s - track.first_s) / (track.num_tokens - 1)


def tpot_after_switch_s(track: SequenceTrack) -> float | None:
    """The same with EcoServe's clock, which starts after the switch wait; None below two tokens or where unknown."""
    total = tpot_s(track)
    if total is None or track.usage is None or track.usage.switch_wait_s is None:
        return None
    return max(0.0, total - track.usage.switch_wait_s / (track.num_tokens - 1))


def flight_outcome(flight: Flight) -> Outcome:
    """The outcome over all sequences: the first token of any, means of the rest."""
    firsts = [track.first_s for track in flight.tracks if track.first_s is not None]
    tpots = [value for track in flight.tracks if (value := tpot_s(track)) is not None]
    waits = [
        track.usage.switch_wait_s
        for track in flight.tracks
        if track.usage is not None and track.usage.switch_wait_s is not None
    ]
    mine = flight.call.of_prompt(flight.prompt_index)
    stopped = all(choice.finish_reason is FinishReason.STOP for choice in mine)
    return Outcome(
        ttft_s=min(firsts) - flight.arrived_s if firsts else None,
        switch_wait_s=sum(waits) / len(waits) if waits else None,
        tpot_s=sum(tpots) / len(tpots) if tpots else None,
        output_tokens=sum(choice.num_tokens for choice in mine),
        finish=(FinishReason.STOP if stopped else FinishReason.LENGTH).value,
        handoff=handoff_of(flight),
    )


def handoff_of(flight: Flight) -> HandoffReport | None:
    """The hand-offs of all sequences as one: bytes together, the longest transfer, the longest exposed part."""
    reports = [track.usage.handoff for track in flight.tracks if track.usage is not None]
    known = [report for report in reports if report is not None]
    if not known:
        return None
    return HandoffReport(
        num_bytes=sum(report.num_bytes for report in known),
        transfer_s=max(report.transfer_s for report in known),
        exposed_s=max(report.exposed_s for report in known),
        transport=known[-1].transport,
        prefill_replica_id=known[-1].prefill_replica_id,
    )

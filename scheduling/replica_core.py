"""The decisions of one replica: events in, actions out, time as an argument. No clock, no I/O, no randomness.

One step is in flight at most, or `pipeline_depth` of them where the device is a pipeline of stages. Every `handle` that
finds fewer starts the next one if anything can run, so the device is never idle with work at hand and nobody needs a
timer. The next step stands before the outputs of the
last in the answer, so that the device starts before tokens are serialised; what the data plane must do stands before
that step. A body performs the actions in that order.
"""

from __future__ import annotations

from contracts.errors import InvalidTransition
from contracts.kv import KVLayout
from contracts.phase import Role
from contracts.prefixes import PrefixChange
from contracts.replica_io import (
    ClientGone,
    DrainRequested,
    Emit,
    KVArriving,
    KVClosed,
    KVLost,
    KVReceived,
    KVSendFailed,
    KVSent,
    LeaseGranted,
    LeaseRevoked,
    LinkDown,
    LinkMeasured,
    LinkUp,
    Refuse,
    ReplicaAction,
    ReplicaEvent,
    RequestArrived,
    RoleAssigned,
    RunStep,
    SayDrained,
    SequenceOutput,
    StepDone,
    StepFailed,
    Woken,
)
from contracts.request import Request
from contracts.views import ReplicaView, StepCost
from scheduling.admission import look_up, refusal, stop_tokens_of
from scheduling.batching import start_steps
from scheduling.block_ledger import BlockLedger
from scheduling.chunk_policies import counts_arrivals
from scheduling.config import ReplicaCoreConfig
from scheduling.handoff_receiving import arriving, end_leases, lost, received, reserve_handoffs
from scheduling.handoff_sending import end_holds, lose_link, moving, note_grant, send_failed, sent
from scheduling.phases import note_step
from scheduling.preemption import give_way
from scheduling.prefix_changes import changes_of, contents_of
from scheduling.replica_state import ReplicaState, StepInFlight
from scheduling.replica_view import view_of
from scheduling.role_guard import assign_role, note_role_of
from scheduling.sequence import Sequence, Status
from scheduling.sequence_ends import cancel, give_up_sending
from scheduling.step_predictor import StepPredictor
from scheduling.step_results import apply_result, fail_step


class ReplicaCore:
    """Admission, KV block ledger, batches, phases and preemption of one replica.

    `num_blocks`: KV blocks of the engine. `max_context`: prompt and output together, in tokens. `cost`: start value of
    the step-time predictor, from `scheduling.profile_plan`.
    """

    def __init__(
        self,
        config: ReplicaCoreConfig,
        role: Role,
        layout: KVLayout,
        num_blocks: int,
        max_context: int,
        eos_token_ids: tuple[int, ...],
        cost: StepCost,
    ) -> None:
        self.state = ReplicaState(
            config=config,
            role=role,
            layout=layout,
            max_context=max_context,
            eos_tokens=frozenset(eos_token_ids),
            ledger=BlockLedger(num_blocks, caching=config.prefix_cache),
            predictor=StepPredictor(
                cost, forgetting=config.predictor_forgetting, margin_quantile=config.margin_quantile
            ),
        )

    def handle(self, event: ReplicaEvent, now: float) -> list[ReplicaAction]:
        """Take one event at `now` (seconds of any clock that never goes back) and say what to do.

        Raises `InvalidTransition` for a step result that no step in flight asked for: the body's own bug.
        """
        state = self.state
        outputs: list[SequenceOutput] = []
        actions: list[ReplicaAction] = []
        if isinstance(event, StepDone):
            outputs = self._step_done(event, now)
        elif isinstance(event, RequestArrived):
            actions += self._arrived(event.request, now)
        elif not isinstance(event, Woken):
            outputs = self._rarer_event(event, now)
        if state.receiving:
            outputs += end_leases(state, now)
        if state.sending:
            end_holds(state, now)
        # Of what comes during a transfer KVArriving is by far the most frequent, and it makes no room.
        if (state.waiting or state.to_receive) and not isinstance(event, KVArriving):
            if state.may_start:
                give_way(state, now)
            reserve_handoffs(state, now)
        probe = state.links.next_probe(state.config, now)
        steps = start_steps(state, now) if state.may_start else []
        if state.transfer_actions:
            actions += state.transfer_actions
            state.transfer_actions = []
        for step in steps:
            actions.append(RunStep(step.batch))
        if probe is not None:
            actions.append(probe)
        if outputs:
            actions.append(Emit(tuple(outputs)))
        if state.draining and not state.sequences and not state.said_drained:
            state.said_drained = True
            actions.append(SayDrained())
        return actions

    def view(self, now: float, replica_id: str, incarnation: str) -> ReplicaView:
        """A snapshot for the fleet."""
        return view_of(self.state, now, replica_id, incarnation)

    def take_prefix_changes(self) -> list[PrefixChange]:
        """How the prefix cache changed since this was last asked, in messages of a bounded size; none if it did not."""
        added, removed = self.state.ledger.take_journal()
        return changes_of(added, removed, self.state.layout.block_size)

    def prefix_contents(self) -> list[PrefixChange]:
        """Everything the prefix cache holds, for somebody who knows nothing of it. Takes nothing from the changes."""
        state = self.state
        return contents_of(state.ledger.cached_names(), state.layout.block_size) if state.ledger.caching else []

    def _arrived(self, request: Request, now: float) -> list[ReplicaAction]:
        state = self.state
        state.acked_submit_index = max(state.acked_submit_index, request.submit_index)
        error = refusal(state, request)
        if error is not None:
            return [Refuse(request.request_id, error.info())]
        sequence = Sequence(request, now, request.sampling.max_tokens, stop_tokens_of(state, request))
        state.sequences[request.request_id] = sequence
        state.counters.accepted += 1
        state.enqueue(sequence)
        if counts_arrivals(state.config) and not sequence.receives:
            state.load.arrived(sequence.num_prompt, now)
        note_grant(state, sequence)
        note_role_of(state, sequence, now)
        look_up(state, sequence)
        return []

    def _client_gone(self, request_id: str, now: float) -> list[SequenceOutput]:
        """Harmless in every state, and said twice."""
        sequence = self.state.sequences.get(request_id)
        if sequence is None:
            return []
        if sequence.status is Status.SENDING:  # its end was said; its KV is of no use any more
            give_up_sending(self.state, sequence, "the client is gone", now)
            return []
        return [] if sequence.is_over else [cancel(self.state, sequence, now)]

    def _rarer_event(self, event: ReplicaEvent, now: float) -> list[SequenceOutput]:
        state = self.state
        match event:
            case LeaseGranted():
                state.clock.lease_until = now + event.duration_s
            case LeaseRevoked():
                state.clock.lease_until = now
            case ClientGone():
                return self._client_gone(event.request_id, now)
            case StepFailed():
                step = self._take_step(event.step_index)
                outputs = fail_step(state, step, event.reason, now)
                note_step(state, step, 0.0, now)
                return outputs
            case DrainRequested():
                state.draining = True
            case RoleAssigned(role):
                assign_role(state, role, now)
            case _:
                return self._transfer_event(event, now)
        return []

    def _transfer_event(self, event: ReplicaEvent, now: float) -> list[SequenceOutput]:
        """What the data plane says. Whatever comes late, twice or for an unknown id is harmless."""
        state = self.state
        match event:
            case KVArriving():
                arriving(state, event, now)
                moving(state, event, now)
            case KVReceived():
                return received(state, event, now)
            case KVLost():
                return lost(state, event, now)
            case KVSent():
                sent(state, event, now)
            case KVSendFailed():
                return send_failed(state, event, now)
            case KVClosed():
                self._transfer_closed(event.request_id, now)
            case LinkUp():
                state.links.up(event, state.config)
            case LinkDown():
                return lose_link(state, event, now)
            case LinkMeasured():
                state.links.measured(event, now)
        return []

    def _transfer_closed(self, request_id: str, now: float) -> None:
        sequence = self.state.sequences.get(request_id)
        if sequence is not None and sequence.status is Status.ENDING and sequence.transfer_open:
            sequence.transfer_open = False
            self.state.settle(sequence, now)

    def _step_done(self, event: StepDone, now: float) -> list[SequenceOutput]:
        state = self.state
        step = self._take_step(event.result.step_index)
        state.counters.steps_done += 1
        state.predictor.update(step.shape, event.duration_s)
        outputs = apply_result(state, step, event.result, now)
        note_step(state, step, event.duration_s, now)
        return outputs

    def _take_step(self, step_index: int) -> StepInFlight:
        oldest = self.state.in_flight
        step = self.state.land(step_index)
        if step is None:
            flying = "none" if oldest is None else str(oldest.batch.step_index)
            raise InvalidTransition(f"step {step_index} ended, but the step in flight is {flying}")
        return step

"""The decisions of one replica: events in, actions out, time as an argument. No clock, no I/O, no randomness.

One step is in flight at most. Every `handle` that finds no step in flight starts the next one if anything can run, so
the device is never idle with work at hand and nobody needs a timer. The next step stands before the outputs of the
last in the answer, so that the device starts before tokens are serialised; a body may perform them in that order.
"""

from __future__ import annotations

import math

from contracts.errors import InvalidTransition
from contracts.kv import KVLayout
from contracts.phase import Role
from contracts.replica_io import (
    ClientGone,
    DrainRequested,
    Emit,
    LeaseGranted,
    LeaseRevoked,
    Refuse,
    ReplicaAction,
    ReplicaEvent,
    RequestArrived,
    RunStep,
    SayDrained,
    SequenceOutput,
    StepDone,
    StepFailed,
    Woken,
)
from contracts.request import Request
from contracts.views import ReplicaView, StepCost
from scheduling.admission import look_up, refusal
from scheduling.batching import next_step
from scheduling.block_ledger import BlockLedger
from scheduling.config import ReplicaCoreConfig
from scheduling.phases import note_step
from scheduling.replica_state import ReplicaState, StepInFlight
from scheduling.replica_view import view_of
from scheduling.sequence import Sequence
from scheduling.step_predictor import StepPredictor
from scheduling.step_results import apply_result, cancel, fail_step


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
        match event:
            case StepDone():
                outputs = self._step_done(event, now)
            case RequestArrived():
                actions += self._arrived(event.request, now)
            case ClientGone():
                sequence = state.sequences.get(event.request_id)
                if sequence is not None and not sequence.is_over:
                    outputs = [cancel(state, sequence, now)]
            case StepFailed():
                step = self._take_step(event.step_index)
                outputs = fail_step(state, step, event.reason, now)
                note_step(state, step, 0.0, now)
            case LeaseGranted():
                state.clock.lease_until = now + event.duration_s
            case LeaseRevoked():
                state.clock.lease_until = now
            case DrainRequested():
                state.draining = True
            case Woken():
                pass
        if state.in_flight is None:
            step_next = next_step(state, now)
            if step_next is not None:
                state.in_flight = step_next
                actions.append(RunStep(step_next.batch))
        if outputs:
            actions.append(Emit(tuple(outputs)))
        if state.draining and not state.sequences and not state.said_drained:
            state.said_drained = True
            actions.append(SayDrained())
        return actions

    def view(self, now: float, replica_id: str, incarnation: str) -> ReplicaView:
        """A snapshot for the fleet."""
        return view_of(self.state, now, replica_id, incarnation)

    def set_role(self, role: Role) -> None:
        """From the next step on the replica decides by another role; what runs stays. A lease does not survive."""
        self.state.role = role
        self.state.clock.lease_until = -math.inf

    def _arrived(self, request: Request, now: float) -> list[ReplicaAction]:
        state = self.state
        state.acked_submit_index = max(state.acked_submit_index, request.submit_index)
        error = refusal(state, request)
        if error is not None:
            return [Refuse(request.request_id, error.info())]
        sampling = request.sampling
        stop_tokens = frozenset(sampling.stop_token_ids)
        if not sampling.ignore_eos:
            stop_tokens |= state.eos_tokens
        sequence = Sequence(request, now, sampling.max_tokens, stop_tokens)
        state.sequences[request.request_id] = sequence
        state.counters.accepted += 1
        state.enqueue(sequence)
        look_up(state, sequence)
        return []

    def _step_done(self, event: StepDone, now: float) -> list[SequenceOutput]:
        state = self.state
        step = self._take_step(event.result.step_index)
        state.counters.steps_done += 1
        state.predictor.update(step.shape, event.duration_s)
        outputs = apply_result(state, step, event.result, now)
        note_step(state, step, event.duration_s, now)
        return outputs

    def _take_step(self, step_index: int) -> StepInFlight:
        step = self.state.in_flight
        if step is None or step.batch.step_index != step_index:
            flying = "none" if step is None else str(step.batch.step_index)
            raise InvalidTransition(f"step {step_index} ended, but the step in flight is {flying}")
        self.state.in_flight = None
        return step

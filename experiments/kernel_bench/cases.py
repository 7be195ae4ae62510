"""The steps that are timed: decode batches with a full context behind them, and prompts in one chunk."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from contracts.model import ModelSpec
from engine.executor import StepInputs
from experiments.engine_bench import roofline
from experiments.engine_bench.roofline import Roofline


@dataclass(frozen=True, slots=True)
class Case:
    """`num_sequences` sequences that compute `count` tokens each and then hold `context` tokens."""

    name: str
    num_sequences: int
    count: int
    context: int

    def limit_s(self, spec: ModelSpec, limits: Roofline, weight_bytes: int) -> float:
        """The least time that memory (decode) or fp32 GEMM (prefill) leaves this step."""
        if self.count > 1:
            return self.count / roofline.prefill_limit(spec, limits, self.count)
        rate = roofline.decode_limit(spec, limits, self.num_sequences, self.context, weight_bytes)
        return self.num_sequences / rate


CASES = (
    Case("decode, batch 1", 1, 1, 512),
    Case("decode, batch 8", 8, 1, 512),
    Case("decode, batch 16", 16, 1, 512),
    Case("prefill 512", 1, 512, 512),
    Case("prefill 1200", 1, 1200, 1200),
)


def blocks_needed(block_size: int) -> int:
    """KV blocks that hold any of the cases."""
    return max(case.num_sequences * -(-case.context // block_size) for case in CASES)


def step_inputs(case: Case, spec: ModelSpec, block_size: int) -> StepInputs:
    """Random tokens over blocks in random order."""
    random = torch.Generator().manual_seed(0)
    per_sequence = -(-case.context // block_size)
    order = torch.randperm(case.num_sequences * per_sequence, generator=random)
    table = order.view(case.num_sequences, per_sequence).int()
    positions = torch.arange(case.context - case.count, case.context).repeat(case.num_sequences)
    sequences = torch.arange(case.num_sequences).repeat_interleave(case.count)
    slots = table[sequences, positions // block_size].long() * block_size + positions % block_size
    return StepInputs(
        token_ids=torch.randint(spec.vocab_size, (len(positions),), generator=random),
        positions=positions.int(),
        row_sequence=sequences.int(),
        query_start=torch.arange(case.num_sequences + 1).int() * case.count,
        context_len=torch.full((case.num_sequences,), case.context).int(),
        block_table=table,
        slots=slots,
        max_query=case.count,
        max_context=case.context,
    )

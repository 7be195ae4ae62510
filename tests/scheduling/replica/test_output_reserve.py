"""How much output is expected, and how many blocks admission keeps for it."""

from __future__ import annotations

from contracts.request import Request, SamplingParams
from scheduling.config import ReplicaCoreConfig
from scheduling.output_reserve import PRIOR_TOKENS, OutputLengths, growth_blocks
from scheduling.sequence import Sequence


def running(prompt: int, produced: int, max_output: int, *, preemptions: int = 0) -> Sequence:
    request = Request(request_id="r", prompt_token_ids=(1,) * prompt, sampling=SamplingParams())
    sequence = Sequence(request, 0.0, max_output, frozenset())
    sequence.tokens += [1] * produced
    sequence.preemptions = preemptions
    return sequence


def test_expectation_is_a_quantile_of_the_longer_ones() -> None:
    lengths = OutputLengths(window=5)
    assert lengths.expect(0, 0.5) == PRIOR_TOKENS
    for length in (1000, 10, 20, 30, 40, 50):  # the first falls out of the window
        lengths.observe(length)
    assert lengths.expect(0, 0.5) == 30
    assert lengths.expect(0, 1.0) == 50
    assert lengths.expect(35, 0.0) == 40
    assert lengths.expect(50, 0.5) == 50 + PRIOR_TOKENS


def test_growth_is_bounded_by_max_tokens_and_grows_with_preemptions() -> None:
    lengths = OutputLengths()
    for length in range(0, 200, 2):
        lengths.observe(length)
    config = ReplicaCoreConfig(output_reserve_quantile=0.5, max_preemptions=3)
    blocks = [growth_blocks(running(8, 0, 400, preemptions=count), lengths, config, 4) for count in range(4)]
    assert blocks[0] == 25  # 100 tokens, the last of which needs no KV
    assert blocks == sorted(blocks)
    assert blocks[3] == 100  # after the last preemption allowed: all it may ever need
    assert growth_blocks(running(8, 0, 5, preemptions=3), lengths, config, 4) == 1
    assert growth_blocks(running(8, 5, 5, preemptions=3), lengths, config, 4) == 0


def test_the_block_of_the_next_token_counts_while_it_is_not_held() -> None:
    config = ReplicaCoreConfig(max_preemptions=0)
    sequence = running(8, 1, 5)  # nine tokens, KV of eight
    sequence.set_blocks([7, 3], 4)
    assert growth_blocks(sequence, OutputLengths(), config, 4) == 1
    sequence.set_blocks([7, 3, 5], 4)
    assert growth_blocks(sequence, OutputLengths(), config, 4) == 0

"""What the tables were found to say, by those who read them. Read them again when they have changed."""

from __future__ import annotations

READING = """\
Of the coarse run of 2026-11-30: CodeLlama2-34B on four L20 replicas, one seed. What agrees with the paper and what not:

- Over prefill priority phased replicas gain 1.2 (ShareGPT) and 1.4 (LongBench) at P90 on EcoServe's clock, the artifact
  1.2 and at least 1.6. The paper has 1.26 and 2.72 over systems without disaggregation: ShareGPT agrees, LongBench has
  the sign only.
- Over chunks beside decodes **it does not agree**: with steps of 256 or 512 tokens, whichever is better, Sarathi ties
  on ShareGPT (19.1 against 18.6 for ours, 19.4 for the artifact) and holds at every rate scanned on LongBench, where
  ours ends at 3.4. With 512 on LongBench it fails at every rate, because one such step takes 160 ms on L20 against a
  target of 100: a gain over a baseline with the wrong chunk would have looked like the paper's. Our own chunks under
  deadlines hold at every rate scanned on both.
- The reason is the cost of a mixed step. Where its two parts are paid one after the other, the same chunks hold 15.0
  (Sarathi) and 13.9 req/s (deadlines) against 18.6 for phases: then phases win by 1.2 and more. Which of the two a
  card does has to be measured; neither is the truth for all.
- Over static P/D **it does not agree** on ShareGPT: with grouped-query attention 10 Gbit/s a replica carry the KV, and
  the best ratio holds more than any phased rule (the paper: 4.00 times less). On LongBench phases gain 1.3 (the paper:
  2.53). Baselines here have no pauses, no buffer limits, and the whole rate of the link.
- The artifact gains on EcoServe's clock and loses on the usual one (on LongBench it holds at no rate there; at P99 on
  ShareGPT on neither): its switch waits are long, and count towards a TTFT target that has room.
- Growth beyond proportion from 1 to 4 replicas: the artifact 4.57 by EcoServe's clock (4.15 by the usual one), ours
  4.23, prefill priority 3.9; the paper 4.96. It agrees in kind. From 1 to 2 prefill priority gains as much: that part
  is the balance of a larger fleet, not rolling.
- Tighter targets (1 s, 50 ms): ours falls from 18.6 to 6.3 req/s at P90, prefill priority from 15.8 to 7.2, Sarathi
  from 19.1 to 11.2 (the paper has Sarathi lose most, and uses A800); at P99 none of these holds at any rate. On L20 a
  decode step takes 30 to 40 ms, which leaves little slack to roll with: phases are then the wrong layout.
- Mitosis splits at the twelfth replica, 6 + 6, as in the paper, but no dip of attainment shows: 98.7 % in the worst
  15 s (the paper: about 85 % near the split). Here a split moves no request and costs nothing."""

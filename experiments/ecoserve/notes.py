"""What RESULT.md says of how it came about."""

from __future__ import annotations

NOTES = """\
- All systems are admission rules of the same two cores, on the same engine, arrivals and lengths: only the rule
  differs, and what the published system did. Baselines so lack what slows real ones down, and gains are smaller.
- Costs: the roofline of `simulator/hardware_files` and `simulator/model_files` (sources there), 3 % noise; prefill
  rates of L20 and A800 are fitted to the paper's table 3. A mixed step reads the weights once, and its linear layers
  take the root of the summed squares of memory and compute time, so that decodes add little to a chunk: that
  favours chunks (see "What a mixed step costs").
- Links: 10 Gbit/s for each replica on L20; 25 Gbit/s (A800) and 3,200 Gbit/s (H100) shared by a node's replicas. Static
  P/D stands for DistServe and MoonCake alike, with the ratio that attains most at 0.6 times the estimate of what the
  fleet carries.
- Goodput is scanned, never bisected, and lies where attainment drawn straight between two scanned rates crosses the
  quantile; the step is 7 to 20 % of the estimate: smaller differences mean nothing. One seed unless said.
- A run lasts three lifetimes of a request at the limit (with `--coarse` two) and at least five TTFT targets; the first
  third is left out. A queue that grows more slowly than that is not seen.
- EcoServe's artifact holds output back while a replica prefills; that is not reproduced."""

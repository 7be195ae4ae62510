"""What the paper printed (EcoServe, OSDI'26; sections as there), to stand beside ours."""

from __future__ import annotations

from experiments.ecoserve.systems import PD, SARATHI, VLLM

P90_GAINS = {
    "L20 and A800": {VLLM: "2.01", SARATHI: "1.87", PD: "3.43 (DistServe), 3.41 (MoonCake)"},
    "H100": {VLLM: "1.34", SARATHI: "1.25", PD: "1.75 (DistServe), 1.24 (MoonCake, which wins on CodeLlama2-34B)"},
}
"""Mean of EcoServe's goodput over the system's, in the cases that could be run (§4.2)."""
DATA_GAINS = {"Alpaca": "1.19, 1.70", "ShareGPT": "1.26, 4.00", "LongBench": "2.72, 2.53"}
"""Over systems without and with disaggregation, at P90."""
TIGHTENING = {
    "EcoServe, artifact": "42 to 18 (-57.1 %)",
    VLLM: "16 to 6.4 (-60.0 %)",
    SARATHI: "28 to 7.6 (-72.9 %)",
    PD: "-26.9 % (DistServe), -23.9 % (MoonCake)",
}
"""CodeLlama2-34B on A800, ShareGPT, P99, targets (5 s, 100 ms) to (1 s, 50 ms)."""
BURSTS = {
    "EcoServe, artifact": "-17.3 %",
    VLLM: "-19.5 %",
    SARATHI: "-35.7 %",
    PD: "-12.6 % (DistServe), -17.1 % (MoonCake)",
}
"""P99, Gamma arrivals, CV 1.2 to 2.0."""
SCALING = "4.96 (CodeLlama2-34B), 5.47 (Qwen2-72B) from 1 to 4 replicas, then linear, then less"

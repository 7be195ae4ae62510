"""PhaseServe beside vLLM, llama.cpp and transformers: one machine, one run, one client, same threads, same model.

`python -m experiments.engine_bench --help` tells how to name the peers that are installed; those that are not named
are left out, and the table says so.
"""

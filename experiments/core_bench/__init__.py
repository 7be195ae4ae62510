"""How long `ReplicaCore.handle` takes: `python -m experiments.core_bench`."""

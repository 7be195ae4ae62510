"""EcoServe's evaluation (Du et al., OSDI'26), simulated with our cores: `python -m experiments.ecoserve`."""

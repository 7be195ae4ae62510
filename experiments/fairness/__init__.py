"""A heavy key beside a light one, simulated: `python -m experiments.fairness`."""

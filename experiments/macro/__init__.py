"""Experiments about macro instances, all on the virtual clock: `python -m experiments.macro.closed_form`."""

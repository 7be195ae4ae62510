"""Whether the fleet planner's closed forms agree with the simulator: `python -m experiments.planner`."""

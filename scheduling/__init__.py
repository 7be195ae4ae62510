"""Every decision of PhaseServe, pure: no clock, no randomness, no I/O, no torch. Time comes in as an argument."""

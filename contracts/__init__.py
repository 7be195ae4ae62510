"""The shared words of PhaseServe as values.

Promise: nothing here does I/O, reads a clock, draws a random number or imports another room. Read `phase`, `batch`
and `kv` first; every other room speaks in these terms.
"""

"""Goodput of 1, 2, 4 and 8 replicas, simulated: does it grow faster than their number, as EcoServe found?

    python -m experiments.macro.superlinear [--rules min prefill_priority] [--replicas 1 2 4 8]

Rates per replica are scanned; goodput is the highest with 90 % attained, by the usual clock and by EcoServe's.
"""

from __future__ import annotations

import argparse

from experiments.macro.rules import LOADS, Settings, measure

RATES = (1.5, 2.0, 2.5, 2.75, 3.0, 3.25, 3.5, 3.75, 4.0)
"""Requests per second for each replica."""


def main() -> None:
    """Print one line for each rule and fleet."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rules", nargs="+", default=["min", "prefill_priority"])
    parser.add_argument("--replicas", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--rates", type=float, nargs="+", default=list(RATES), help="for each replica")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--duration", type=float, default=60.0)
    arguments = parser.parse_args()
    print("| rule | replicas | goodput, usual clock | per replica | EcoServe's clock | per replica |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for rule in arguments.rules:
        for replicas in arguments.replicas:
            settings = Settings(
                load=LOADS["sharegpt"], replicas=replicas, seeds=arguments.seeds, duration_s=arguments.duration
            )
            found = measure(rule, settings, [rate * replicas for rate in arguments.rates], 0.9).scanned
            usual, ecoserve = found.goodput, found.goodput_ecoserve
            print(
                f"| `{rule}` | {replicas} | {usual:g} | {usual / replicas:.2f} | {ecoserve:g} | "
                f"{ecoserve / replicas:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()

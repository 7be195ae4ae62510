"""Many runs at once: cases on all cores, their rows in a store from which a killed run goes on.

Example: attainment of two layouts over five rates, in ten lines.

    from pathlib import Path
    from simulator.grid import Case, at_rates, goodputs, run_grid
    from simulator.scenarios import small

    if __name__ == "__main__":  # worker processes import this module
        fleets = {"phased": {"alternating": 4}, "colocated": {"mixed": 4}}
        cases = [case for name, counts in fleets.items()
                 for case in at_rates({"layout": name}, small(**counts), (4.0, 8.0, 12.0, 16.0, 20.0))]
        rows = run_grid(cases, Path("results/layouts.jsonl"))
        print(goodputs(rows, by=("layout",), share=0.9))
"""

from simulator.grid.case import Case, Row, Value
from simulator.grid.run import failed, run_grid
from simulator.grid.scan import at_rates, bounds, goodputs

__all__ = ["Case", "Row", "Value", "at_rates", "bounds", "failed", "goodputs", "run_grid"]

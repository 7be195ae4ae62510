"""The two cores on a virtual clock: `simulator.run.simulate(scenario)` gives a `simulator.report.Report`."""

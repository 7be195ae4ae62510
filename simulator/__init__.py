"""The two cores on a virtual clock. Filled by the simulator work; the cores it drives are in `scheduling`."""

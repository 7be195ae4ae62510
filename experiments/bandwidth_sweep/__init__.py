"""The same requests over links of many rates, in every layout and as the router chooses: live, in network namespaces.

`python -m experiments.bandwidth_sweep --help`, or `phaseserve sweep --live`. Needs the `bench` extra.
"""

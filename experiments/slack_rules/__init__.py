"""Which rule says how long prefill may hold up running streams: `python -m experiments.slack_rules`."""

"""What it is worth that cached prefixes count in placement: a recorded trace, with and without."""

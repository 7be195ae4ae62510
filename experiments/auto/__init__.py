"""`auto` against the best static layout known in hindsight, on recorded traces and where the load changes."""

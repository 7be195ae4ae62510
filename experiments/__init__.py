"""Benchmarks and reproductions, each one command with its table."""

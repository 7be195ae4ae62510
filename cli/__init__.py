"""The `phaseserve` command."""

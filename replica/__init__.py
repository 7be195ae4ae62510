"""The worker process: an engine, a core, one or both phase runners."""

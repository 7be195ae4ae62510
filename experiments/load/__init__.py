"""A small neutral load client for any OpenAI-compatible server, and the load it sends."""

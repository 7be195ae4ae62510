"""The front door: the OpenAI-compatible API, text in and out, the fleet's sockets. Every decision is ClusterCore's."""

"""Kubernetes: discovery, election and scaling for the router. Its only network client is aiohttp (extra `k8s`)."""

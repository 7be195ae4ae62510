"""Kubernetes: discovery, election and scaling for the router, over the official client (extra `k8s`)."""

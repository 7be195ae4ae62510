"""What discovery in Kubernetes costs a router with very many replicas."""

"""How fast the simulator is and what it needs: against Vidur, for a million requests, for ten thousand replicas."""

"""How a decode phase is performed on a replica."""

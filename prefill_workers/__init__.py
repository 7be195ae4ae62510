"""How a prefill phase is performed on a replica."""

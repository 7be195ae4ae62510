"""Several hosts on one machine: network namespaces joined by a bridge, with links that can be shaped and cut."""

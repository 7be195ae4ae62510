"""Fixed chunks, `deadline` and DCP's chunk policies on replicas of one, two and four pipeline stages."""

"""KV hand-offs through two real processes beside a plain socket of the same pattern, per link and transport."""

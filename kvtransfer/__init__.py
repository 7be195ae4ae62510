"""Moving KV between replicas and measuring the links. Comes with disaggregation; `contracts.kv` is what it moves."""

"""Moving KV between replicas and measuring the links. Filled by the disaggregation work; the KV layout it moves is `contracts.kv`."""

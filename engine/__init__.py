"""One model on one device: weights, paged KV, one step. Imports nothing: `engine.checkpoint` stays free of torch."""

"""One model on one device: weights, paged KV, one step. This file imports nothing, so that `engine.checkpoint` stays free of torch."""

"""From logits to output tokens. Read `sampler` first; `stream`, `penalties`, `filters` and `logprobs` are its parts."""

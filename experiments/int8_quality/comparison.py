"""How far the logits of one engine are from those of another, position by position."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

Figures = dict[str, float]


@dataclass(slots=True)
class Comparison:
    """Collects groups of prompts; `figures` sums up. Every list holds tensors [prompts, positions]."""

    max_error: list[torch.Tensor] = field(default_factory=list)
    mean_error: list[torch.Tensor] = field(default_factory=list)
    relative_error: list[torch.Tensor] = field(default_factory=list)
    divergence: list[torch.Tensor] = field(default_factory=list)
    agrees: list[torch.Tensor] = field(default_factory=list)
    regret: list[torch.Tensor] = field(default_factory=list)

    def add(self, reference: torch.Tensor, other: torch.Tensor) -> None:
        """Compare logits float32 [prompts, positions, vocab] of the same contexts."""
        error = (other - reference).abs()
        self.max_error.append(error.amax(dim=-1))
        self.mean_error.append(error.mean(dim=-1))
        self.relative_error.append(error.square().mean(dim=-1).sqrt() / reference.std(dim=-1))
        expected, got = reference.log_softmax(dim=-1), other.log_softmax(dim=-1)
        self.divergence.append((expected.exp() * (expected - got)).sum(dim=-1).clamp(min=0.0))
        best, chosen = reference.argmax(dim=-1, keepdim=True), other.argmax(dim=-1, keepdim=True)
        self.agrees.append((best == chosen).squeeze(-1))
        self.regret.append((expected.gather(-1, best) - expected.gather(-1, chosen)).squeeze(-1))

    def figures(self) -> Figures:
        """The whole experiment in numbers. `regret` is the reference's log probability of its own choice less that of
        the other engine's choice, in nats, where they differ: how clear the mistakes were."""
        agrees, regret = torch.cat(self.agrees), torch.cat(self.regret)
        divergence = torch.cat(self.divergence).flatten()
        return {
            "prompts": len(agrees),
            "positions": agrees.numel(),
            "agreement_last_prompt_token": agrees[:, 0].double().mean().item(),
            "agreement_all_positions": agrees.double().mean().item(),
            "prompts_agreeing_everywhere": agrees.all(dim=1).double().mean().item(),
            "regret_mean_where_different": regret[~agrees].mean().item() if bool((~agrees).any()) else 0.0,
            "regret_max": regret.max().item(),
            "logit_error_max": torch.cat(self.max_error).max().item(),
            "logit_error_mean": torch.cat(self.mean_error).mean().item(),
            "logit_error_relative": torch.cat(self.relative_error).mean().item(),
            "kl_mean": divergence.mean().item(),
            "kl_p95": divergence.quantile(0.95).item(),
            "kl_max": divergence.max().item(),
        }

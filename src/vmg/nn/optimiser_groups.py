"""Parameter groups for an optimiser that decays weights."""

from __future__ import annotations

from typing import Any

from torch import nn

from vmg.nn.bayesian import BayesianModule

__all__ = ["parameter_groups"]


def parameter_groups(model: nn.Module, *, weight_decay: float = 0.01, **bayesian_options: Any) -> list[dict[str, Any]]:
    """Groups for ``torch.optim.AdamW``: ``weight_decay`` for deterministic matrices only.

    What a Bayesian layer holds is drawn to its prior by the KL divergence already; decay on top would count the prior
    twice and pull logarithms of scales to zero. Biases and the weights of norms are not decayed either, as is usual.

    Args:
        model: of which all trainable parameters are taken, each once.
        weight_decay: of deterministic weights with two or more dimensions.
        **bayesian_options: of the Bayesian group, such as ``lr``.
    """
    bayesian = {p for m in model.modules() if isinstance(m, BayesianModule) for p in m.parameters()}
    trained = [p for p in model.parameters() if p.requires_grad]
    rest = [p for p in trained if p not in bayesian]
    groups = [
        {"params": [p for p in trained if p in bayesian], "weight_decay": 0.0, **bayesian_options},
        {"params": [p for p in rest if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in rest if p.dim() < 2], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]

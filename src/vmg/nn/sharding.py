"""Parameters that FSDP2 shards over processes: limits are applied to the pieces, divergences see the whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from vmg.processes import in_group

if TYPE_CHECKING:
    from vmg.nn.bayesian import BayesianModule

__all__ = ["is_parallel", "is_sharded", "project_pieces", "whole_divergence"]


def is_parallel(model: nn.Module) -> bool:
    """Whether several processes train this model together, each on rows of its own."""
    return in_group() and (isinstance(model, DistributedDataParallel) or _is_fsdp(model))


def _is_fsdp(module: nn.Module) -> bool:
    if not in_group():
        return False
    from torch.distributed.fsdp import FSDPModule  # takes seconds

    return isinstance(module, FSDPModule)


def is_sharded(module: nn.Module) -> bool:
    """Whether this process holds, at this moment, a piece of some parameter only."""
    if not in_group():
        return False
    from torch.distributed.tensor import DTensor

    return any(isinstance(p, DTensor) for p in module.parameters())


def whole_divergence(module: BayesianModule) -> Tensor:
    """The module's divergence with its parameters gathered, and their gradients spread again."""
    if not is_sharded(module):
        return module.kl_divergence()
    if not _is_fsdp(module):
        raise RuntimeError(
            f"kl_divergence must see whole parameters, but those of {type(module).__name__} are sharded: apply "
            "fully_shard to the Bayesian layer itself, or to the whole model with reshard_after_forward=False"
        )
    if "kl_divergence" not in module.__dict__:
        from torch.distributed.fsdp import register_fsdp_forward_method

        register_fsdp_forward_method(module, "kl_divergence")
    return module.kl_divergence()


def project_pieces(model: nn.Module) -> None:
    """Move √α back into its bounds where it is kept; a forward pass moves gathered copies only."""
    if not is_sharded(model):
        return
    from vmg.nn.matrix_gaussian import PseudoData  # which imports this file

    for part in model.modules():
        if isinstance(part, PseudoData):
            limits = part.limits()
            if any(isinstance(limit, Tensor) for limit in limits):
                raise ValueError("max_noise must be one number where parameters are sharded; got one for each replica")
            for log_noise in part.log_noises():
                piece: Any = log_noise.data
                (piece.to_local() if is_sharded(part) else piece).clamp_(*limits)

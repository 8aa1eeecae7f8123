from collections.abc import Callable

import pytest
import torch
from torch import nn


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def perturb() -> Callable[..., nn.Module]:
    """Moves every parameter away from its start, in place and in float64, so that nothing is small by chance."""

    def move(module: nn.Module, dtype: torch.dtype = torch.float64) -> nn.Module:
        module.to(dtype)
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.add_(0.5 * torch.randn_like(parameter))
        return module

    return move

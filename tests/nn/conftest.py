import pytest
import torch

from vmg.nn import MatrixGaussianLinear


@pytest.fixture
def make_layer(perturb):
    """Make a layer with parameters that are not those of the start."""

    def make(*sizes, dtype=torch.float64, **options):
        return perturb(MatrixGaussianLinear(*sizes, **options), dtype)

    return make

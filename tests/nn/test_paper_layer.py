"""The paper's layer in plain PyTorch (examples/paper_layer.py) is ``vmg.nn.MatrixGaussianLinear``."""

import importlib.util
from pathlib import Path

import pytest
import torch

from vmg.nn import MatrixGaussianLinear
from vmg.nn.matrix_gaussian import sample_diagonal

EXAMPLE = Path(__file__).parents[2] / "examples" / "paper_layer.py"


@pytest.fixture
def pair():
    """Both layers with the same random parameters, in double precision."""
    spec = importlib.util.spec_from_file_location("paper_layer", EXAMPLE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    torch.manual_seed(0)
    ours = MatrixGaussianLinear(5, 3, n_pseudo=4, max_noise=0.3).double()
    plain = example.PaperLayer(5, 3, 4, max_noise=0.3).double()
    with torch.no_grad():
        ours.pseudo_data.points.normal_()
        ours.pseudo_data.log_noise.copy_(torch.tensor([-2.0, -1.5]))
        plain.M.copy_(ours.loc)
        plain.log_u.copy_(ours.row.log_scale)
        plain.log_v.copy_(ours.column.log_scale)
        plain.A.copy_(ours.pseudo_data.inputs)
        plain.B.copy_(ours.pseudo_data.outputs)
        plain.log_noise.copy_(ours.pseudo_data.log_noise)
    return ours, plain


def test_both_charge_the_same(pair):
    ours, plain = pair
    torch.testing.assert_close(plain.kl(), ours.kl_divergence())


def test_both_draw_the_same_from_the_same_noise(pair):
    ours, plain = pair
    x, points, noise = (torch.randn(*shape, dtype=torch.float64) for shape in ((7, 5), (4, 9), (7, 3)))
    data = ours.pseudo_data
    parameters = ours.loc, ours.row.log_scale, ours.column.log_scale, data.points, data.log_noise, None
    expected = sample_diagonal(x, parameters, (points, noise), ours.damping)
    torch.testing.assert_close(plain.draw(x, points[:, :6], points[:, 6:], noise), expected, rtol=1e-6, atol=1e-8)


def test_projection_bounds_the_noise(pair):
    _, plain = pair
    with torch.no_grad():
        plain.log_noise.copy_(torch.tensor([1.0, -9.0]))
    plain.project()
    assert plain.log_noise.exp().tolist() == pytest.approx([0.3, torch.tensor(-4.0).exp().item()])

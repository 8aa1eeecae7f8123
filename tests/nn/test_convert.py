import itertools

import pytest
import torch
from torch import nn

import vmg
from vmg.likelihoods import CategoricalLikelihood, KnownNoiseLikelihood
from vmg.nn import MatrixGaussianLinear, bayesianize, use_generator


class Residual(nn.Module):
    """A user's model: nested, with a layer without bias, dropout and a parameter of its own."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(3, 8)
        self.block = nn.Sequential(nn.LayerNorm(8), nn.Sequential(nn.Linear(8, 8, bias=False), nn.Tanh()))
        self.heads = nn.ModuleList([nn.Linear(8, 2)])
        self.gain = nn.Parameter(torch.tensor(0.7))

    def forward(self, x):
        h = self.embed(x)
        return self.heads[0](h + self.gain * self.block(h))


def mean_model(model):
    """The converted model with every Bayesian layer at its centre: the plain model it stands for."""
    for name, child in list(model.named_children()):
        if isinstance(child, MatrixGaussianLinear):
            setattr(model, name, child.to_linear(centre=True))
        else:
            mean_model(child)
    return model


@pytest.mark.parametrize("n_pseudo", [0, 2])
@pytest.mark.parametrize("family", ["diagonal", "rank_one", "dense"])
def test_keeps_the_predictions_of_a_trained_model_as_its_centre(family, n_pseudo):
    model, x = Residual().double(), torch.randn(5, 3, dtype=torch.float64)
    expected = model(x)
    converted = bayesianize(model, n_pseudo=n_pseudo, row_covariance=family)
    drawn = torch.stack([converted(x) for _ in range(20)])
    assert drawn.dtype == torch.float64
    assert drawn.std(0).min() > 0
    assert (drawn.mean(0) - expected).abs().max() < 0.5 * expected.std(), "draws stay near a trained model"
    torch.testing.assert_close(mean_model(converted)(x), expected)


def test_converts_every_linear_and_nothing_else():
    converted = bayesianize(Residual())
    layers = [m for m in converted.modules() if isinstance(m, MatrixGaussianLinear)]
    assert [(m.in_features, m.out_features, m.bias) for m in layers] == [(3, 8, True), (8, 8, False), (8, 2, True)]
    assert not any(isinstance(m, nn.Linear) for m in converted.modules())
    assert isinstance(converted.block[0], nn.LayerNorm)


def test_leaves_the_original_untouched():
    model, x = Residual(), torch.randn(5, 3)
    expected, parameters = model(x), {id(p) for p in model.parameters()}
    converted = bayesianize(model)
    assert not parameters & {id(p) for p in converted.parameters()}
    with torch.no_grad():
        for parameter in converted.parameters():
            parameter.add_(1)
    assert isinstance(model.embed, nn.Linear)
    assert torch.equal(model(x), expected)


def test_converts_a_single_linear():
    linear, x = nn.Linear(3, 2), torch.randn(5, 3)
    layer = bayesianize(linear, sampling="weights")
    assert isinstance(layer, MatrixGaussianLinear)
    assert layer.sampling == "weights"
    torch.testing.assert_close(layer.forward_mean(x), linear(x))


def test_replicas_all_start_at_the_same_weights():
    linear, x = nn.Linear(3, 2), torch.randn(5, 3)
    means = bayesianize(linear, batch_shape=(4,)).forward_mean(x)
    torch.testing.assert_close(means, linear(x).expand(4, 5, 2))


def test_a_linear_used_twice_stays_one_layer():
    shared = nn.Linear(3, 3)
    converted = bayesianize(nn.Sequential(shared, nn.ReLU(), shared))
    assert isinstance(converted[0], MatrixGaussianLinear)
    assert converted[2] is converted[0]


def test_nothing_to_convert():
    with pytest.raises(ValueError, match=r"Sequential holds no nn\.Linear layer to convert"):
        bayesianize(nn.Sequential(nn.ReLU()))


def test_wrong_option():
    with pytest.raises(ValueError, match="row_covariance must be one of"):
        bayesianize(nn.Linear(3, 2), row_covariance="full")


@pytest.mark.parametrize("n_pseudo", [0, 2])
def test_trains_in_the_users_own_loop(n_pseudo):
    """Plain PyTorch: optimiser, loss, backward. Under the same noise each of the first steps lowers the loss."""
    model = bayesianize(nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1)), n_pseudo=n_pseudo)
    x = torch.randn(32, 3)
    y = x[:, :1] - 0.5 * x[:, 1:2]
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(5):
        use_generator(model, torch.Generator().manual_seed(1))
        loss = -vmg.elbo(model, KnownNoiseLikelihood(0.5), x, y, n_data=32).total
        losses.append(loss.item())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert all(later < earlier for earlier, later in itertools.pairwise(losses)), losses


def test_classifier_with_leading_data_dimensions():
    model = bayesianize(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)))
    y = torch.tensor([0, 1, 2, 0, 1, 2])
    terms = vmg.elbo(model, CategoricalLikelihood(), torch.randn(6, 2, 2), y, n_data=6)
    assert torch.isfinite(terms.total)
    assert terms.total.shape == ()

"""Settings that a conversion chooses by itself."""

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

import vmg
from vmg.likelihoods import CategoricalLikelihood, GaussianLikelihood
from vmg.nn import MatrixGaussianLinear, bayesianize, conversion, to_plain
from vmg.nn.convert import layer_settings


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
    torch.testing.assert_close(to_plain(converted)(x), expected)


def test_converts_every_linear_layer_of_a_copy_and_nothing_else():
    model, x = Residual(), torch.randn(5, 3)
    expected, parameters = model(x), {id(p) for p in model.parameters()}
    converted = bayesianize(model)
    layers = [m for m in converted.modules() if isinstance(m, MatrixGaussianLinear)]
    assert [(m.in_features, m.out_features, m.has_bias) for m in layers] == [(3, 8, True), (8, 8, False), (8, 2, True)]
    assert not any(isinstance(m, nn.Linear) for m in converted.modules())
    assert isinstance(converted.block[0], nn.LayerNorm)
    assert not parameters & {id(p) for p in converted.parameters()}
    with torch.no_grad():
        for parameter in converted.parameters():
            parameter.add_(1)
    assert isinstance(model.embed, nn.Linear)
    assert torch.equal(model(x), expected)


def test_a_linear_used_twice_stays_one_layer():
    shared = nn.Linear(3, 3)
    converted = bayesianize(nn.Sequential(shared, nn.ReLU(), shared))
    assert isinstance(converted[0], MatrixGaussianLinear)
    assert converted[2] is converted[0]


# -- what a conversion keeps ------------------------------------------------------------------------------------------


class HeldTwice(nn.Module):
    """Layers in a plain list besides their names."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 2)
        self.order = [self.first, self.second]

    def forward(self, x):
        for layer in self.order:
            x = layer(x)
        return x


def test_a_layer_that_a_list_holds_too_is_converted_there():
    converted, x = bayesianize(HeldTwice(), initial_scale=0.5), torch.randn(5, 3)
    assert converted.order[0] is converted.first
    assert isinstance(converted.order[0], MatrixGaussianLinear)
    assert (converted(x) - converted(x)).abs().min() > 0


def test_modes_stay():
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(), nn.Linear(3, 2)).eval()
    model[2].train()
    assert [m.training for m in bayesianize(model)] == [False, False, True]


def test_hooks_stay():
    model, seen = nn.Sequential(nn.Linear(3, 2)), []
    model[0].register_forward_hook(lambda module, inputs, output: seen.append(type(module)))
    model[0].register_forward_pre_hook(lambda module, inputs: (inputs[0] * 0,))
    converted = bayesianize(model, initial_scale=1e-6)
    torch.testing.assert_close(converted(torch.randn(5, 3)), model[0].bias.expand(5, 2), atol=1e-4, rtol=0)
    assert len(seen) == 1
    assert issubclass(seen[0], MatrixGaussianLinear)


def test_frozen_layers_stay_frozen_points_unless_asked_for_by_name():
    model = nn.Sequential(nn.Linear(3, 4).requires_grad_(False), nn.Linear(4, 2))
    converted = bayesianize(model)
    assert type(converted[0]) is nn.Linear
    assert not any(p.requires_grad for p in converted[0].parameters())
    assert conversion(converted).left == {"0": "frozen"}
    layer = bayesianize(model, only="0")[0]
    assert not layer.loc.requires_grad
    assert layer.row.log_scale.requires_grad
    assert layer.pseudo_data is None


def test_tied_weights_stay_tied():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 2))
    model[1].weight = model[0].weight
    with pytest.warns(UserWarning, match=r"0 \(it shares weights with another module\); 1 \("):
        converted = bayesianize(model)
    assert converted[1].weight is converted[0].weight
    assert list(conversion(converted).converted) == ["2"]
    with pytest.raises(ValueError, match="0 cannot be converted faithfully: it shares weights"):
        bayesianize(model, only="0")
    bayesianize(model, skip="0|1")  # agreed to: no warning


class Scaled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


def parametrised():
    return nn.utils.parametrizations.weight_norm(nn.Linear(3, 3))


def patched():
    linear = nn.Linear(3, 3)
    linear.forward = lambda x: x
    return linear


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: Scaled(3, 3), "a subclass of Linear"),
        (parametrised, "its weight is parametrised"),
        (lambda: nn.utils.spectral_norm(nn.Linear(3, 3)), "its weight is computed before each call"),
        (patched, "its forward was replaced"),
        (lambda: nn.LazyLinear(3), "a subclass of Linear"),
    ],
)
def test_what_looks_convertible_and_is_left_is_said(make, reason):
    model = nn.Sequential(make(), nn.Linear(3, 2))
    with pytest.warns(UserWarning, match=f"left as they are, though they look convertible: 0 .{reason}"):
        converted = bayesianize(model)
    assert reason in conversion(converted).left["0"]
    with pytest.raises(ValueError, match=f"0 cannot be converted faithfully: {reason}"):
        bayesianize(model, only="0")


def test_half_frozen_layers_are_left():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    model[0].bias.requires_grad_(False)
    with pytest.warns(UserWarning, match="some of its parameters are frozen"):
        assert type(bayesianize(model)[0]) is nn.Linear


def test_only_and_skip_name_modules_and_what_is_inside_them():
    model = nn.ModuleDict({"fc1": nn.Linear(3, 3), "fc2": nn.Linear(3, 3), "head": nn.Sequential(nn.Linear(3, 2))})
    assert list(conversion(bayesianize(model, only="fc.*|head")).converted) == ["fc1", "fc2", "head.0"]
    assert list(conversion(bayesianize(model, only="head")).converted) == ["head.0"]
    assert list(conversion(bayesianize(model, skip="fc1|head")).converted) == ["fc2"]
    assert conversion(bayesianize(model, only="fc2")).left == {"fc1": "not chosen", "head.0": "not chosen"}
    with pytest.raises(ValueError, match=r"only must match the name of a module; 'tail' matches none of \['fc1'"):
        bayesianize(model, only="tail")


def test_the_summary_is_printed_and_kept(capsys):
    model = bayesianize(nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4)), verbose=True)
    printed = capsys.readouterr().out
    assert printed == f"{conversion(model)}\n"
    assert "1 converted, 1 left as they are" in printed
    assert "LayerNorm has no Bayesian counterpart" in printed
    with pytest.raises(ValueError, match="was not made by"):
        conversion(nn.Linear(2, 2))


def test_a_single_linear_layer_starts_at_its_weights():
    linear, x = nn.Linear(3, 2), torch.randn(5, 3)
    layer = bayesianize(linear, sampling="weights")
    assert isinstance(layer, MatrixGaussianLinear)
    assert layer.sampling == "weights"
    torch.testing.assert_close(layer.forward_mean(x), linear(x))
    torch.testing.assert_close(bayesianize(linear, batch_shape=(4,)).forward_mean(x), linear(x).expand(4, 5, 2))
    with torch.no_grad():
        torch.testing.assert_close(layer.weight, linear.weight)
        torch.testing.assert_close(layer.bias, linear.bias)
    with pytest.warns(UserWarning, match="weight of a MatrixGaussianLinear is its mean, without noise"):
        nn.functional.linear(x, layer.weight, layer.bias)
    assert bayesianize(nn.Linear(3, 2, bias=False)).bias is None


def test_a_bayesian_model_is_left():
    model = nn.Sequential(MatrixGaussianLinear(3, 3), nn.Linear(3, 2))
    converted = bayesianize(model)
    assert conversion(converted).left == {"0": "Bayesian already"}


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (nn.Linear(3, 2), {"n_data": 0}, "n_data must be positive; got 0"),
        (nn.Linear(3, 2), {"n_data": -1}, "n_data must be positive; got -1"),
        (nn.Linear(3, 2), {"row_covariance": "full"}, "row_covariance must be one of"),
        (nn.Conv1d(3, 2, 1), {"row_covariance": "full"}, "row_covariance must be one of"),
        (nn.Sequential(nn.ReLU()), {}, "Sequential holds no layer to convert"),
    ],
)
def test_wrong_arguments(model, options, message):
    with pytest.raises(ValueError, match=message):
        bayesianize(model, **options)


@pytest.mark.parametrize(("n_rows", "n_pseudo"), [(1, 0), (2, 1), (5, 4), (65, 20), (785, 50), (10_000, 50)])
def test_points_follow_the_layers_size(n_rows, n_pseudo):
    assert layer_settings(n_rows, None)["n_pseudo"] == n_pseudo


def test_given_settings_come_first():
    layer = bayesianize(nn.Linear(8, 2), n_data=100, n_pseudo=3, max_noise=0.2)
    assert layer.n_pseudo == 3
    assert layer.pseudo_data.max_noise == 0.2


def train(model, likelihood, x, y, epochs, rate):
    optimiser = torch.optim.Adam(model.parameters(), lr=rate)
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(64):
            terms = vmg.elbo(model, likelihood, x[rows], y[rows], n_data=len(x))
            optimiser.zero_grad()
            (-terms.total).backward()
            optimiser.step()


def test_digits_are_learned_from_scratch():
    """Without pseudo-points, the default once, this loop ended with one digit in ten right."""
    images, labels = (torch.as_tensor(a) for a in load_digits(return_X_y=True))
    x, y = images.float() / 16 - 0.3, labels.long()
    plain = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    model, likelihood = bayesianize(plain, n_data=1_300), CategoricalLikelihood()
    train(model, likelihood, x[:1_300], y[:1_300], epochs=25, rate=2e-3)
    mean = vmg.predict(model, x[1_300:], likelihood=likelihood, n_samples=20).mean
    assert (mean.argmax(-1) == y[1_300:]).float().mean() > 0.85


def test_a_surface_is_learned_and_its_noise():
    x = 4 * torch.rand(900, 4) - 2
    f = torch.sin(2 * x[:, :1]) + x[:, 1:2] * x[:, 2:3]
    f = (f - f.mean()) / f.std()
    y = f + 0.3 * torch.randn_like(f)
    plain = nn.Sequential(nn.Linear(4, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 1))
    model, likelihood = bayesianize(plain, n_data=700), GaussianLikelihood()
    train(model, likelihood, x[:700], y[:700], epochs=80, rate=5e-3)
    found = vmg.predict(model, x[700:], likelihood=likelihood, n_samples=30)
    assert (found.mean - f[700:]).square().mean().sqrt() < 0.45
    covered = ((y[700:] - found.mean).abs() < 1.645 * found.std).float().mean()
    assert 0.8 < covered < 0.99, "90 % intervals; before the noise was updated in this loop, 22 %"

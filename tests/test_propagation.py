"""Propagated moments against many draws of whole networks, within their standard errors."""

import copy

import pytest
import torch

from vmg.nn import MLP, MeanFieldLinear
from vmg.prediction import propagate_moments, sample_outputs

D, C = 4, 2


def network(perturb, noise=1e-4, dtype=torch.float64, **options):
    made = perturb(MLP(D, **{"hidden": (12,), "out_features": C, "n_pseudo": 3, "max_noise": noise} | options), dtype)
    for layer in made.layers:
        if layer.pseudo_data is not None:
            layer.pseudo_data.project_()
    return made


def check_against_draws(made, x, *, n=40_000, slack=0.0):
    """Mean and variance within five standard errors of n draws, and ``slack`` of the standard deviation."""
    draws = sample_outputs(made, x, n)
    mean, centred = draws.mean(0), draws - draws.mean(0)
    variance = centred.square().mean(0)
    error = (centred.pow(4).mean(0) - variance.square()).clamp_min(0).div(n).sqrt()
    found = propagate_moments(made, x)
    std = variance.sqrt()
    assert ((found.mean - mean).abs() <= 5 * std / n**0.5 + slack * std).all()
    assert ((found.variance - variance).abs() <= 5 * error + 2 * slack * variance).all()


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_one_hidden_layer_is_exact_but_for_the_pseudo_inputs_noise(activation, perturb):
    check_against_draws(network(perturb, activation=activation), torch.randn(5, D).double())


@pytest.mark.parametrize("options", [{"n_pseudo": 0}, {"zero_mean": True}, {"bias": False}], ids=str)
def test_every_kind_of_diagonal_layer(options, perturb):
    check_against_draws(network(perturb, **options), torch.randn(5, D).double())


def test_the_pseudo_outputs_noise_is_exact_whatever_its_size(perturb):
    made = network(perturb, 0.5)
    for layer in made.layers:
        layer.pseudo_data.log_noise.data[0] = -20.0  # of the inputs; below the bound, which project_ restores
        layer.pseudo_data._lowest.fill_(-20.0)
    check_against_draws(made, torch.randn(5, D).double())


def test_the_pseudo_inputs_noise_is_right_to_leading_order(perturb):
    made = network(perturb, 0.05)
    check_against_draws(made, torch.randn(5, D).double(), slack=0.03)
    tiny = network(perturb, 1e-4)
    tiny.load_state_dict(made.state_dict())
    x = torch.randn(5, D).double()
    assert (propagate_moments(made, x).variance > 1.02 * propagate_moments(tiny, x).variance).any()  # it does matter


def test_two_hidden_layers_stay_close(perturb):
    check_against_draws(network(perturb, hidden=(12, 12)), torch.randn(5, D).double(), n=10_000, slack=0.1)


def test_draws_of_pseudo_inputs_agree_with_the_first_order(perturb):
    made, x = network(perturb, 0.05), torch.randn(5, D).double()
    first, drawn = propagate_moments(made, x), propagate_moments(made, x, n_pseudo_draws=2_000)
    std = first.variance.sqrt()
    assert ((first.mean - drawn.mean).abs() < 0.1 * std).all()
    torch.testing.assert_close(drawn.variance.sqrt(), std, rtol=0.05, atol=0)
    one = propagate_moments(made, x, n_pseudo_draws=1)
    assert one.mean.shape == (5, C) and (one.variance > 0).all()


def test_a_network_without_hidden_layer_is_its_layer(perturb):
    made, x = network(perturb, 1e-8, hidden=()), torch.randn(5, D).double()
    made.layers[0].pseudo_data._lowest.fill_(-30.0)
    made.layers[0].pseudo_data.log_noise.data.fill_(-30.0)
    layer, found = made.layers[0], propagate_moments(made, x)
    predictive = layer.predictive(x)
    rows = predictive.row_covariance.to_dense().diagonal()
    torch.testing.assert_close(found.mean, predictive.loc, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(
        found.variance, rows.unsqueeze(-1) * torch.exp(2 * layer.column.log_scale), rtol=1e-5, atol=1e-8
    )


@pytest.mark.parametrize("own_rows", [False, True])
def test_replicas_are_a_loop(own_rows, perturb):
    made = network(perturb, 0.2, batch_shape=(3,))
    x = torch.randn(*([3] if own_rows else []), 5, D).double()
    together = propagate_moments(made, x)
    for k in range(3):
        one = network(perturb, 0.2)
        state = {name: t[k] for name, t in made.state_dict().items()}
        one.load_state_dict(state)
        alone = propagate_moments(one, x[k] if own_rows else x)
        for whole, part in zip(together, alone, strict=True):
            torch.testing.assert_close(whole[k], part)


def test_chunks_of_rows_change_nothing(perturb, monkeypatch):
    made, x = network(perturb, 0.2), torch.randn(23, D).double()
    whole = propagate_moments(made, x)
    monkeypatch.setattr("vmg.propagation.ENTRIES", 100)
    for a, b in zip(whole, propagate_moments(made, x), strict=True):
        torch.testing.assert_close(a, b)


def test_single_precision_is_close_to_double(perturb):
    made, x = network(perturb, 0.2), torch.randn(5, D)
    exact, single = propagate_moments(made, x), propagate_moments(copy.deepcopy(made).float(), x)
    assert single.mean.dtype == torch.float32 and exact.mean.dtype == torch.float64
    for a, b in zip(single, exact, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-3, atol=1e-4)


def test_what_cannot_be_propagated_is_refused(perturb):
    x = torch.randn(5, D).double()
    for other in (
        network(perturb, row_covariance="dense"),
        MLP(D, (3,), 1, make_layer=lambda _, n_in, n_out: MeanFieldLinear(n_in, n_out)).double(),
    ):
        with pytest.raises(ValueError, match="every layer must be a MatrixGaussianLinear with diagonal covariances"):
            propagate_moments(other, x)
    with pytest.raises(ValueError, match="n_pseudo_draws must be >= 0; got -1"):
        propagate_moments(network(perturb), x, n_pseudo_draws=-1)
    with pytest.raises(ValueError, match="x must be finite"):
        propagate_moments(network(perturb), x * float("nan"))
    with pytest.raises(ValueError, match="x must have 4 features"):
        propagate_moments(network(perturb), x[:, :3])

"""Every baseline that is a kind of layer, as an estimator."""

import math

import numpy as np
import pytest
import torch
from methods import OPTIONS, every_layer, make
from sklearn.base import clone
from sklearn.model_selection import KFold

from quick import linear_table
from vmg.fused import library
from vmg_paper import baselines
from vmg_paper.baselines.layer_methods import RATES, LearnedVarianceLikelihood
from vmg_paper.baselines.splits import fit_splits


@every_layer
def test_beats_the_constant_on_every_split(name):
    X, y = linear_table(210)
    splits = list(KFold(3, shuffle=True, random_state=0).split(X))
    for model, (train, test) in zip(fit_splits(make(name), X, y, splits), splits, strict=True):
        prediction = model.pred_dist(X[test])
        constant = -0.5 * (math.log(2 * math.pi) + 1) - math.log(y[train].std())
        assert np.sqrt(np.mean((prediction.mean - y[test]) ** 2)) < 0.6 * y[test].std()
        assert prediction.log_prob(y[test]).mean() > constant + 0.2
        assert prediction.interval(0.9).shape == (len(test), 2)
        assert model.feature_relevance_.shape == (3,)


@every_layer
def test_parameters_are_the_methods_own(name):
    model = make(name)
    parameters = model.get_params()
    assert not {"n_pseudo", "max_noise", "row_covariance", "warm_start"} & set(parameters)
    assert parameters.items() >= OPTIONS.items()
    twin = clone(model.set_params(max_iter=7))
    assert twin.get_params() == model.get_params()
    assert twin.max_iter == 7
    assert "random_state=0" in repr(model)
    with pytest.raises(TypeError, match="n_pseudo"):
        make(name, n_pseudo=3)


@pytest.mark.parametrize("name", ["MeanField", "MCDropout"])
def test_members_and_several_outputs(name):
    X, y = linear_table(40, n_outputs=2)
    model = make(name, n_members=2, max_iter=5).fit(X, y)
    assert model.predict(X).shape == (40, 2)
    assert model.network_.layers[0].batch_shape == (2,)


# -- choices of single methods ----------------------------------------------------------------------------------------


def test_rates_are_given_or_chosen_from_the_grid():
    X, y = linear_table(40)
    given = make("MCDropout", rate=0.3, max_iter=3).fit(X, y)
    assert given.choice_.rate == 0.3
    chosen = fit_splits(make("MCDropout", max_iter=3), X, y, list(KFold(2).split(X)))
    for model in (given, *chosen):
        assert model.network_.layers[1].rate.tolist() == pytest.approx([model.choice_.rate])
    assert {model.choice_.rate for model in chosen} <= set(RATES)
    with pytest.raises(ValueError, match=r"rate must be a number in \[0, 1\) or 'auto'; got 'much'"):
        make("MCDropout", rate="much").fit(X, y)


def test_mc_dropout_finds_the_noise():
    """Noise of 0.2: τ = 25, within the error of a validation on 120 rows."""
    X, y = linear_table(200)
    model = make("MCDropout", rate=0.005, max_iter=400).fit(X, y)
    assert 25 / 2 < model.choice_.precision / model.target_scaling_.scale[0] ** 2 < 25 * 2
    assert model.likelihood_.get_buffer("scale").item() == pytest.approx(model.choice_.precision**-0.5, rel=1e-6)
    assert model.pred_dist(X).epistemic_std.mean() > 0


def test_ensemble_is_the_mixture_of_its_members():
    X, y = linear_table(40)
    model = make("DeepEnsemble", max_iter=20).fit(X, y)
    x = torch.as_tensor(model.input_scaling_.transform(X), dtype=torch.float64)
    f = model.network_.double().forward_mean(x).detach()  # [5, N, 2]
    centre, unit = model.target_scaling_.mean[0], model.target_scaling_.scale[0]
    means = centre + unit * f[..., 0].numpy()
    variances = unit**2 * (np.log1p(np.exp(f[..., 1].numpy())) + 1e-6)
    assert means.shape == (5, 40)
    assert np.ptp(means, axis=0).min() > 0
    prediction = model.pred_dist(X)
    mean = means.sum(0) / 5
    np.testing.assert_allclose(prediction.mean, mean)
    np.testing.assert_allclose(prediction.std**2, (variances + means**2).sum(0) / 5 - mean**2)
    density = np.exp(-0.5 * (y - means) ** 2 / variances) / np.sqrt(2 * np.pi * variances)
    np.testing.assert_allclose(prediction.log_prob(y), np.log(density.mean(0)))


def test_learned_variance_likelihood_by_hand():
    likelihood = LearnedVarianceLikelihood(2)
    f, y = torch.randn(3, 5, 4), torch.randn(3, 5, 2)
    scale = (torch.nn.functional.softplus(f[..., 2:]) + 1e-6).sqrt()
    expected = torch.distributions.Normal(f[..., :2], scale).log_prob(y).sum(-1)
    torch.testing.assert_close(likelihood.expected_log_prob(f, y), expected)
    with pytest.raises(ValueError, match="the network must have 2 outputs for this likelihood; got 1"):
        likelihood.expected_log_prob(f[..., :2], y)


@pytest.mark.skipif(not library.available(), reason="without kernels the random numbers are others")
def test_a_short_fit_of_the_papers_recipe_gives_its_recorded_numbers():
    """Twenty steps: another processor rounds otherwise, but not by as much as another order of draws would change."""
    X, y = linear_table(40)
    options = {"batch_size": 10, "max_iter": 5, "learning_rate_init": 0.01, "n_draws": 100, "random_state": 0}
    prediction = baselines.PaperVMG(3, 0.2).regressor((6,), **options).fit(X, y).pred_dist(X[:3])
    np.testing.assert_allclose(prediction.mean, [-0.165124, -0.097139, 0.020001], atol=2e-3)
    np.testing.assert_allclose(prediction.std, [1.165773, 1.168833, 1.180681], atol=2e-3)

"""Noise that depends on the input, as an option of the regressor."""

import numpy as np
import pytest
import torch
from torch.distributions import Normal

from quick import regressor


def noisy_table(n, seed):
    """y = x + noise, ten times as wide on the right as on the left."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, size=n)
    scale = 0.1 * 10 ** ((x + 1) / 2)
    return x[:, None], x + scale * rng.normal(size=n), scale


@pytest.fixture(scope="module")
def fits():
    X, y, _ = noisy_table(300, 0)
    options = {"hidden_layer_sizes": (16,), "n_pseudo": 0, "max_iter": 400, "learning_rate_init": 0.05}
    return {noise: regressor(noise=noise, **options).fit(X, y) for noise in ("constant", "input")}


def test_noise_that_depends_on_the_input_is_found(fits):
    X, y, scale = noisy_table(500, 1)
    density = {noise: model.pred_dist(X).log_prob(y).mean() for noise, model in fits.items()}
    truth = Normal(torch.tensor(X[:, 0]), torch.tensor(scale)).log_prob(torch.tensor(y)).mean().item()
    assert density["input"] > density["constant"] + 0.2
    assert density["input"] > truth - 0.1
    assert density["input"] < truth + 0.05
    found = fits["input"].pred_dist(X).aleatoric_std
    assert np.corrcoef(np.log(found), np.log(scale))[0, 1] > 0.9
    assert np.ptp(fits["constant"].pred_dist(X).aleatoric_std) < 1e-6


def test_intervals_follow_the_noise(fits):
    X, y, scale = noisy_table(2_000, 2)
    quiet, loud = scale < 0.2, scale > 0.5
    covered = {}
    for noise, model in fits.items():
        low, high = model.predict_interval(X, 0.8).T
        inside = (low < y) & (y < high)
        covered[noise] = inside[quiet].mean(), inside[loud].mean()
    assert abs(np.array(covered["input"]) - 0.8).max() < 0.1
    assert covered["constant"][0] > 0.95, "one width for all is too wide here"
    assert covered["constant"][1] < 0.7, "and too narrow there"


def test_constant_noise_is_not_mistaken():
    """Where noise is the same everywhere, the option costs little."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, size=(250, 1))
    y = X[:, 0] + 0.3 * rng.normal(size=250)
    options = {"hidden_layer_sizes": (16,), "max_iter": 300, "learning_rate_init": 0.05}
    density = []
    for noise in ("constant", "input"):
        model = regressor(**options, noise=noise).fit(X[:150], y[:150])
        density.append(model.pred_dist(X[150:]).log_prob(y[150:]).mean())
    assert density[1] > density[0] - 0.1

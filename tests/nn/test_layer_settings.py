"""Settings that a conversion chooses by itself."""

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

import vmg
from vmg.likelihoods import CategoricalLikelihood, GaussianLikelihood
from vmg.nn import bayesianize
from vmg.nn.layer_settings import layer_settings


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

import numpy as np
import pytest
import torch

from vmg.fit.calibration import HeldOut, calibrate, t_log_density
from vmg.fit.design import Standardiser, TrainingPlan
from vmg.fit.gaussian import RegressionMembers
from vmg.math.evidence import NoisePrior, RowStatistics, row_statistics
from vmg.scale.group_calibration import calibrate_groups
from vmg.scale.group_training import GroupRows, train_groups
from vmg.scale.pooling import GroupPrior, learn_prior

SIZE = {"hidden": (5,), "activations": ("relu", "tanh"), "n_members": 4}
PLAN = TrainingPlan(max_steps=40, patience=20, refit_steps=10)


def groups(sizes):
    found = []
    for k, n in enumerate(sizes):
        rng = np.random.default_rng(k)
        x = rng.normal(size=(n, 2))
        found.append(GroupRows(x, np.sin(x[:, 0]) * (k + 1) / 2 + 0.1 * rng.normal(size=n), seed=k))
    return found


def test_a_batch_of_groups_is_one_group_after_the_other():
    some = groups([30, 24, 37, 8])
    together = train_groups(some, **SIZE, plan=PLAN)
    for group, one in zip(some, together, strict=True):
        [alone] = train_groups([group], **SIZE, plan=PLAN)
        assert one.n_steps == alone.n_steps
        for name, value in alone.members.state_dict().items():
            torch.testing.assert_close(one.members.state_dict()[name], value, rtol=2e-2, atol=2e-3, msg=name)
    assert together[3].held_out is None  # too few rows
    assert [one.members.head.count[0].item() for one in together] == [30, 24, 37, 8]


def test_padding_has_no_say():
    small, large = groups([20, 60])
    [alone] = train_groups([small], **SIZE, plan=TrainingPlan(max_steps=1, refit_steps=1))
    padded = train_groups([small, large], **SIZE, plan=TrainingPlan(max_steps=1, refit_steps=1))[0]
    torch.testing.assert_close(padded.members.head.gram, alone.members.head.gram, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(padded.held_out.loc, alone.held_out.loc, rtol=1e-3, atol=1e-4)


def held_out(n, seed, noise=0.3):
    rng = np.random.default_rng(seed)
    variance = rng.gamma(2, 0.02, n)
    return HeldOut(noise * rng.standard_t(5, n) + np.sqrt(2 * variance) * rng.normal(size=n), variance, np.ones(n))


def test_calibrations_of_many_groups_are_those_of_each():
    folds = [held_out(n, k) for k, n in enumerate([25, 60, 200])]
    regions = [held_out(20, 10), HeldOut(*(np.zeros(0),) * 3), held_out(50, 11)]
    least = [0.01, 0.02, 0.5]

    def loss(found, fold, region):
        total = 0.0
        for rows in (fold, region):
            if len(rows.error):
                scale = found.noise + found.inflation * rows.variance
                total -= np.average(t_log_density(rows.error, scale, found.degrees), weights=rows.weight)
        prior = 10 * np.log(found.inflation) ** 2 + 3 * ((np.log(found.degrees - 3) - 2) / 2) ** 2
        return total + 0.5 * prior / len(fold.error)

    for found, fold, region, level in zip(calibrate_groups(folds, regions, least), folds, regions, least, strict=True):
        expected = calibrate(fold, region if len(region.error) else None, level)
        assert found.noise >= level * (1 - 1e-9)
        assert loss(found, fold, region) == pytest.approx(loss(expected, fold, region), abs=2e-3)


def test_a_prior_around_mu_is_statistics_of_rows_never_seen():
    """Against the textbook's posterior of a Gaussian prior with a mean."""
    torch.manual_seed(0)
    phi, y = torch.randn(1, 7, 3, dtype=torch.float64), torch.randn(1, 7, 1, dtype=torch.float64)
    mu, a = torch.tensor([[1.0, -2.0, 0.5]], dtype=torch.float64), torch.tensor([[2.0, 3.0]], dtype=torch.float64)
    prior = GroupPrior(mu, a.log(), (2, 1), NoisePrior(3.0, 0.7))
    found = prior.posterior(row_statistics(phi, y))
    precision = torch.diag(torch.tensor([2.0, 2.0, 3.0], dtype=torch.float64))
    A = precision + phi[0].T @ phi[0]
    m = torch.linalg.solve(A, precision @ mu[0] + phi[0].T @ y[0, :, 0])
    b = 0.7 + 0.5 * (y.square().sum() + mu[0] @ precision @ mu[0] - m @ A @ m)
    torch.testing.assert_close(found.mean[0, :, 0], m)
    torch.testing.assert_close(found.noise_variance[0, 0], b / (3.0 + 3.5))
    none = prior.posterior(RowStatistics(*(torch.zeros_like(part) for part in row_statistics(phi, y))))
    torch.testing.assert_close(none.mean[0, :, 0], mu[0])  # a group of no rows is the prior itself
    torch.testing.assert_close(none.noise_variance[0, 0], torch.tensor(0.7 / 3.0, dtype=torch.float64))


def test_the_prior_of_groups_is_found_again():
    """Groups drawn from a known prior: its mean, precision and noise are learned from them."""
    rng = np.random.default_rng(0)
    members = RegressionMembers(2, (), 1, ("relu",), 1).double()  # features: the inputs/√2 and a one
    mu, deviation, noise = np.array([1.0, -1.0, 3.0]), np.array([0.5, 0.5, 2.0]), 0.2
    rows = []
    for _ in range(300):
        x = torch.as_tensor(rng.normal(size=(15, 2)))
        w = mu + deviation * rng.normal(size=3)
        with torch.no_grad():
            phi = members.features(x)
        y = phi @ torch.as_tensor(w)[:, None] + noise * torch.as_tensor(rng.normal(size=(1, 15, 1)))
        rows.append(row_statistics(phi, y))
    members.head.update(phi, y[0])
    prior = learn_prior(rows, members)
    np.testing.assert_allclose(prior.mean[0], mu, atol=0.3)
    found = noise / prior.log_precision[0].exp().sqrt()  # a is in units of the noise's precision
    np.testing.assert_allclose(found, [0.5, 2.0], rtol=0.15)
    assert prior.noise.rate / prior.noise.concentration == pytest.approx(noise**2, rel=0.15)


def test_standardiser_of_one_row_is_finite():
    assert np.isfinite(Standardiser.fit(np.array([[3.0, -1.0]])).scale).all()

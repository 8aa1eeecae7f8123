"""Gaussian weights of a softmax layer, class by class, against slow and obvious references."""

import pytest
import torch
from torch.nn import functional as F

from vmg.math.class_weights import ClassRows, ClassWeights, class_probabilities, improve_classes


def posterior(d=4, k=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    roots = torch.randn(k, d, d, generator=generator, dtype=torch.float64)
    precision = roots @ roots.mT + torch.eye(d, dtype=torch.float64)
    mean = torch.randn(d, k, generator=generator, dtype=torch.float64)
    return ClassWeights(mean, torch.linalg.cholesky(precision)), precision


def test_variances_and_draws_are_those_of_each_class():
    q, precision = posterior()
    features = torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for k in range(3):
        covariance = torch.linalg.inv(precision[k])
        torch.testing.assert_close(q.variance(features)[:, k], (features @ covariance @ features.mT).diagonal())
    noise = torch.randn(40_000, 4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    drawn = q.weight_noise(noise)
    for k in range(3):
        covariance = torch.linalg.inv(precision[k])
        error = 6 * torch.outer(covariance.diagonal(), covariance.diagonal()).sqrt() / 40_000**0.5
        assert ((torch.cov(drawn[..., k].mT) - covariance).abs() < error).all()
    assert (drawn[..., 0] * drawn[..., 1]).mean(0).abs().max() < 0.05, "classes are independent"


def test_mean_probabilities_are_near_those_of_draws_and_do_not_see_a_shift():
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(50, 4, generator=generator, dtype=torch.float64)
    variance = 3 * torch.rand(50, 4, generator=generator, dtype=torch.float64)
    noise = torch.randn(20_000, 50, 4, generator=generator, dtype=torch.float64)
    expected = torch.softmax(logits + variance.sqrt() * noise, -1).mean(0)
    found = class_probabilities(logits, variance)
    assert (found - expected).abs().mean() < 0.03
    assert (found - expected).abs().max() < 0.15
    torch.testing.assert_close(class_probabilities(logits + 7, variance), found)


@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_the_optimum_solves_both_equations(scale):
    """Rows with weights, a prior with means and dense precisions; scale 3 makes many rows certain."""
    generator = torch.Generator().manual_seed(0)
    features = scale * torch.randn(80, 4, generator=generator, dtype=torch.float64)
    labels = F.one_hot((features[:, 0] > 0).long() + (features[:, 1] > 0).long(), 3).double()
    weight = torch.rand(80, generator=generator, dtype=torch.float64) + 0.5
    prior, precision = posterior()
    start = prior.mean, torch.zeros_like(precision)
    rows = ClassRows(features, labels, weight)
    mean, curvature = improve_classes(*start, rows, prior.mean, precision, n_rounds=200, n_steps=10)
    p = class_probabilities(
        features @ mean, ClassWeights(mean, torch.linalg.cholesky(precision + curvature)).variance(features)
    )
    for k in range(3):
        pull = sum(weight[n] * (labels[n, k] - p[n, k]) * features[n] for n in range(80))
        torch.testing.assert_close(precision[k] @ (mean[:, k] - prior.mean[:, k]), pull, atol=2e-3, rtol=2e-3)
        outer = (weight[n] * p[n, k] * (1 - p[n, k]) * torch.outer(features[n], features[n]) for n in range(80))
        torch.testing.assert_close(curvature[k], sum(outer), atol=2e-3, rtol=2e-3)
    kept, _ = improve_classes(*start, rows, prior.mean, precision, n_rounds=3, n_steps=0)
    assert torch.equal(kept, prior.mean)

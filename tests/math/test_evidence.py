"""The output layer integrated out, against dense Student t densities, chain rules and repeated rows."""

import numpy as np
import pytest
import torch
from scipy import stats

from vmg.math.evidence import (
    NoisePrior,
    RowStatistics,
    condition,
    log_evidence,
    row_statistics,
)

PRIORS = [NoisePrior(), NoisePrior(2.5, 0.7), NoisePrior(2.5, 0.7, full=True)]


def problem(n=7, d=4, c=1, batch=(), seed=0):
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*batch, *shape, generator=generator, dtype=torch.float64)

    return normal(n, d), normal(n, c), normal(d).exp()


@pytest.mark.parametrize("seed", range(5))
def test_evidence_is_the_density_of_a_multivariate_student_t(seed):
    features, y, precision = problem(seed=seed)
    prior = NoisePrior(1.5, 0.3)
    kernel = torch.eye(7, dtype=torch.float64) + features / precision @ features.mT
    scale = (prior.rate / prior.concentration * kernel).numpy()
    expected = stats.multivariate_t.logpdf(y[:, 0].numpy(), np.zeros(7), scale, df=2 * prior.concentration)
    assert log_evidence(features, y, precision, prior=prior).item() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("n_outputs", [1, 3])
def test_evidence_is_a_product_of_predictive_densities(prior, n_outputs):
    features, y, precision = problem(c=n_outputs)
    total = 0.0
    for n in range(len(y)):
        posterior = condition(row_statistics(features[:n], y[:n]), precision, prior)
        row = features[n : n + 1]
        centre = (row @ posterior.mean)[0].numpy()
        inflation = 1 + posterior.variance(row).item()
        df = posterior.t_degrees.item()
        if posterior.full:
            scale = inflation * posterior.scatter.numpy() / df
            total += stats.multivariate_t.logpdf(y[n].numpy(), centre, scale, df=df)
        else:
            scale = np.sqrt(inflation * posterior.noise_variance.numpy())
            total += stats.t.logpdf(y[n].numpy(), df, centre, scale).sum()
    assert log_evidence(features, y, precision, prior=prior).item() == pytest.approx(total, abs=1e-8)


@pytest.mark.parametrize("prior", PRIORS)
def test_gradient(prior):
    features, y, precision = problem(c=2, batch=(2,))
    weight = torch.rand(2, 7, dtype=torch.float64) + 0.5
    arguments = features.requires_grad_(), precision.requires_grad_()
    assert torch.autograd.gradcheck(lambda f, a: log_evidence(f, y, a, weight=weight, prior=prior), arguments)


@pytest.mark.parametrize("prior", PRIORS)
def test_weights_are_repeated_rows_and_a_batch_is_a_loop(prior):
    features, y, precision = problem(c=2, batch=(3,))
    counts = torch.tensor([1, 2, 0, 3, 1, 1, 2])
    weighted = log_evidence(features, y, precision, weight=counts.double().expand(3, 7), prior=prior)
    for k in range(3):
        again = features[k].repeat_interleave(counts, 0), y[k].repeat_interleave(counts, 0)
        torch.testing.assert_close(log_evidence(*again, precision[k], prior=prior), weighted[k])


@pytest.mark.parametrize("prior", PRIORS)
def test_statistics_of_halves_add_up_to_those_of_the_whole(prior):
    features, y, precision = problem(n=40, c=2)
    weight = torch.rand(40, dtype=torch.float64)
    whole = condition(row_statistics(features, y, weight), precision, prior)
    halves = [row_statistics(features[part], y[part], weight[part]) for part in (slice(15), slice(15, None))]
    updated = condition(RowStatistics(*map(torch.add, *halves)), precision, prior)
    for name in ("root", "mean", "degrees", "scatter"):
        torch.testing.assert_close(getattr(whole, name), getattr(updated, name), rtol=1e-10, atol=1e-10)


def test_joint_covariance_and_draws_agree_with_the_variance_of_each_row():
    features, y, precision = problem(n=30)
    posterior = condition(row_statistics(features, y), precision, NoisePrior())
    joint = posterior.relative_covariance(features)
    torch.testing.assert_close(joint.diagonal(), posterior.variance(features))
    identity = torch.eye(4, dtype=torch.float64)
    draws = features @ posterior.weight_noise(identity)
    torch.testing.assert_close(draws @ draws.mT, joint)


def test_rows_that_do_not_match_are_refused():
    features, y, precision = problem()
    with pytest.raises(ValueError, match="y must have 7 rows"):
        log_evidence(features, y[:5], precision)
    with pytest.raises(ValueError, match="rate must be positive"):
        NoisePrior(rate=0.0)

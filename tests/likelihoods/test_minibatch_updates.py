"""Minibatch updates of the conjugate posteriors."""

import itertools

import pytest
import torch
from likelihood_cases import CONJUGATE, C, N, data, over_conjugate, updated

from reference import assert_close, members, normal
from vmg.likelihoods import GaussianLikelihood, HeteroscedasticLikelihood

pytestmark = pytest.mark.usefixtures("double_precision")


def natural_parameters(likelihood):
    """Shape and rate of the posterior; updates are linear in them."""
    if isinstance(likelihood, GaussianLikelihood):
        return likelihood.posterior.concentration, likelihood.posterior.rate
    return likelihood.df.clone(), likelihood.rate_matrix.clone()


def assert_same_posterior(one, other):
    for a, b in zip(natural_parameters(one), natural_parameters(other), strict=True):
        assert_close(a, b)


@over_conjugate
@pytest.mark.parametrize("n_before", [0, 3])
def test_a_minibatch_update_is_unbiased(cls, n_before):
    f, y = data(n=5)

    def after(index):
        likelihood = cls(C, concentration=2.0, rate=0.5, step_size=0.1)
        for seed in range(n_before):
            updated(likelihood, seed=10 * seed + 50)
        likelihood.update_(f[index], y[index], 5)
        return natural_parameters(likelihood)

    batches = [after(list(index)) for index in itertools.combinations(range(5), 2)]
    for mean, full in zip((torch.stack(p).mean(0) for p in zip(*batches, strict=True)), after(range(5)), strict=True):
        assert_close(mean, full)


@over_conjugate
def test_steps_average_the_first_batches_and_then_forget_slowly(cls):
    step_size, targets = 0.25, []
    likelihood = cls(C, step_size=step_size)
    for t in range(1, 8):
        targets.append(natural_parameters(updated(cls(C), seed=t)))  # one step of size 1 is the batch's own target
        before = natural_parameters(likelihood)
        updated(likelihood, seed=t)
        for i, after in enumerate(natural_parameters(likelihood)):
            if t <= 4:
                assert_close(after, torch.stack([target[i] for target in targets]).mean(0))
            else:
                assert_close(after, before[i] + step_size * (targets[-1][i] - before[i]))


@over_conjugate
def test_weights_are_repeated_rows(cls):
    f, y = data()
    count = torch.tensor([1, 2, 0, 3, 1, 1, 2])
    repeated = cls(C)
    repeated.update_(f.repeat_interleave(count, 0), y.repeat_interleave(count, 0), count.sum())
    weighted = cls(C)
    weighted.update_(f, y, count.sum(), count / count.double().mean())
    assert_same_posterior(weighted, repeated)


@pytest.mark.parametrize("cls", [*CONJUGATE.values(), HeteroscedasticLikelihood])
def test_replicas_are_a_loop(cls):
    f, y = data(2, 3)
    f = torch.cat([f, normal(2, 3, N, C, seed=7)], -1) if cls is HeteroscedasticLikelihood else f
    n_data, weight = 10 + torch.arange(6.0).reshape(2, 3), normal(2, 3, N, seed=5).exp()
    likelihood = cls(C, concentration=2.0, rate=0.5, batch_shape=(2, 3))
    for _ in range(2):
        likelihood.update_(f, y, n_data, weight)
    log_prob, kl, student = likelihood.expected_log_prob(f, y), likelihood.kl_divergence(), likelihood.student()
    assert (log_prob.shape, kl.shape) == ((2, 3, N), (2, 3))
    for i in members((2, 3)):
        one = cls(C, concentration=2.0, rate=0.5)
        for _ in range(2):
            one.update_(f[i], y[i], n_data[i], weight[i])
        assert_close(log_prob[i], one.expected_log_prob(f[i], y[i]))
        assert_close(kl[i], one.kl_divergence())
        for a, b in zip(student, one.student(), strict=True):
            assert_close(a[i], b)

"""Langevin dynamics on a Gaussian, whose discretised law is known exactly."""

import math

import pytest
import torch

from vmg_paper.baselines.diagnostics import bulk_ess
from vmg_paper.baselines.langevin import Decay, RMSprop, sample

VARIANCE = torch.tensor([1.0, 0.25], dtype=torch.float64)
MEAN = torch.tensor([0.5, -1.0], dtype=torch.float64)


def slope(state):
    return (MEAN - state) / VARIANCE


def assert_moments(draws, variance, allowance=0.0):
    """Mean and variance of draws [n, chains, 2] within four standard errors, plus a share of bias."""
    values = draws.numpy()
    size = bulk_ess(values)
    error = (variance / torch.as_tensor(size)).sqrt()
    assert ((draws.mean((0, 1)) - MEAN).abs() < 4 * error).all()
    squares = bulk_ess((values - MEAN.numpy()) ** 2)
    tolerance = 4 * math.sqrt(2) * variance / torch.as_tensor(squares).sqrt() + allowance * variance
    assert ((draws.var((0, 1)) - variance).abs() < tolerance).all()


def test_plain_steps_have_the_variance_of_the_discretised_process():
    """θ' = θ − ½ε(θ − μ)/σ² + √ε z is an autoregression with variance σ²/(1 − ε/(4σ²))."""
    epsilon = 0.2
    draws = sample(
        slope,
        MEAN.expand(200, 2).clone(),
        step_size=lambda step: epsilon,
        n_steps=3000,
        n_burn_in=200,
        thinning=10,
        generator=torch.Generator().manual_seed(0),
    )
    assert_moments(draws, VARIANCE / (1 - epsilon / (4 * VARIANCE)))


def test_small_steps_have_the_targets_moments_with_noisy_gradients():
    generator = torch.Generator().manual_seed(1)

    def noisy(state):
        return slope(state) + torch.randn(state.shape, generator=generator, dtype=state.dtype)

    # gradient noise of variance 1 adds ε/4 to the unit variance of the injected noise
    draws = sample(
        noisy,
        MEAN.expand(200, 2).clone(),
        step_size=lambda step: 0.02,
        n_steps=6000,
        n_burn_in=1000,
        thinning=20,
        generator=generator,
    )
    assert_moments(draws, VARIANCE, allowance=0.04)


def test_the_preconditioner_evens_out_scales_and_keeps_the_moments():
    generator = torch.Generator().manual_seed(2)

    def noisy(state):  # noise of minibatches dominates, so the preconditioner hardly depends on the state
        return slope(state) + 10 * torch.randn(state.shape, generator=generator, dtype=state.dtype) / VARIANCE.sqrt()

    draws = sample(
        noisy,
        MEAN.expand(200, 2).clone(),
        step_size=lambda step: 1e-4,
        n_steps=6000,
        n_burn_in=1000,
        thinning=20,
        precondition=RMSprop(100.0, decay=0.99),
        generator=generator,
    )
    assert_moments(draws, VARIANCE, allowance=0.1)


def test_the_preconditioner_is_the_root_of_a_running_mean_of_squares():
    conditioner = RMSprop(2.0, decay=0.75, damping=0.5)
    first, second = torch.tensor([4.0]), torch.tensor([8.0])
    assert conditioner(first) == 1 / (0.5 + 2.0)
    assert conditioner(second) == 1 / (0.5 + math.sqrt(0.75 * 4 + 0.25 * 16))


def test_steps_decay_from_the_first_to_the_last():
    decay = Decay(1e-2, 1e-4, 100)
    assert decay(0) == pytest.approx(1e-2) and decay(100) == pytest.approx(1e-4)
    assert all(decay(t) > decay(t + 1) for t in range(100))
    assert Decay(0.1, 0.1, 10)(7) == 0.1
    with pytest.raises(ValueError, match="first must be >= last"):
        Decay(1e-4, 1e-2, 10)


def test_draws_are_every_so_many_states_after_burn_in():
    draws = sample(
        slope,
        torch.zeros(3, 2, dtype=torch.float64),
        step_size=lambda step: 0.1,
        n_steps=100,
        n_burn_in=40,
        thinning=7,
        generator=torch.Generator().manual_seed(0),
    )
    assert draws.shape == (60 // 7, 3, 2)


def test_a_chain_that_explodes_says_so():
    with pytest.raises(RuntimeError, match="must stay finite"):
        sample(
            slope,
            torch.ones(1, 2, dtype=torch.float64),
            step_size=lambda step: 1e3,
            n_steps=500,
            n_burn_in=10,
            thinning=10,
            generator=torch.Generator().manual_seed(0),
        )

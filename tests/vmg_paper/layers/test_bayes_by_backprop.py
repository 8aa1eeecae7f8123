"""Bayes by Backprop: the mixture prior and the estimate of the KL at the drawn weights."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch.distributions import Normal

from reference import assert_close, normal
from vmg_paper.layers import BayesByBackpropLinear, ScaleMixture

MIXTURE = ScaleMixture(0.3, 1.5, 0.1)


def test_mixture_density_is_the_sum_of_two():
    w = torch.linspace(-4, 4, 41, dtype=torch.float64)
    direct = 0.3 * stats.norm(0, 1.5).pdf(w) + 0.7 * stats.norm(0, 0.1).pdf(w)
    assert_close(MIXTURE.log_prob(w), torch.log(torch.as_tensor(direct)))


def test_mixture_density_far_out_is_that_of_the_wide_part():
    w = torch.tensor([3.0, 30.0, -1e4])
    assert_close(ScaleMixture().log_prob(w), math.log(0.5) + Normal(0.0, 1.0).log_prob(w), 1e-6)


def test_mixture_density_has_the_slope_of_the_sum_of_two():
    w = torch.tensor([0.0, 1e-3, 0.2, -0.45, 2.0, -30.0], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(MIXTURE.log_prob(w).sum(), w)
    at = w.detach().numpy()
    wide, narrow = 0.3 * stats.norm(0, 1.5).pdf(at), 0.7 * stats.norm(0, 0.1).pdf(at)
    assert_close(slope, torch.as_tensor(-at * (wide / 1.5**2 + narrow / 0.1**2) / (wide + narrow)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"share": 1.0}, r"share must be inside \(0, 1\); got 1.0"),
        ({"wide": 0.1, "narrow": 0.2}, "0 < narrow < wide; got 0.2 and 0.1"),
    ],
)
def test_mixture_refuses(options, message):
    with pytest.raises(ValueError, match=message):
        ScaleMixture(**options)


def test_kl_is_taken_at_the_weights_that_were_drawn(perturb):
    layer, x = perturb(BayesByBackpropLinear(3, 2, prior=MIXTURE, batch_shape=(2,))), normal(5, 3, seed=1)
    f = layer(x)
    posterior = Normal(layer.loc, layer.log_scale.exp())
    weight = layer.loc + layer.log_scale.exp() * layer.last_noise
    assert_close(f, layer.apply_weight(x, weight))
    expected = (posterior.log_prob(weight) - MIXTURE.log_prob(weight)).sum((-2, -1))
    assert_close(layer.kl_divergence(), expected, 1e-6)  # priors are kept in single precision at first
    assert torch.equal(layer.kl_divergence(), layer.kl_divergence()), "the same draw"
    before = layer.kl_divergence()
    layer(x)
    assert not torch.equal(layer.kl_divergence(), before), "another draw"


def test_replicas_have_priors_of_their_own(perturb):
    priors = [MIXTURE, ScaleMixture()]
    batch = perturb(BayesByBackpropLinear(3, 2, prior=priors, batch_shape=(2,)))
    weight = batch.loc + batch.log_scale.exp() * batch.draw_noise(*batch.loc.shape)
    posterior = Normal(batch.loc, batch.log_scale.exp())
    batch.last_noise = (weight - batch.loc) / batch.log_scale.exp()
    for k, prior in enumerate(priors):
        expected = (posterior.log_prob(weight)[k] - prior.log_prob(weight[k])).sum()
        assert_close(batch.kl_divergence()[k], expected, 1e-6)  # priors are kept in single precision at first
    with pytest.raises(ValueError, match=r"prior must be one or one for each replica of \(3,\); got 2"):
        BayesByBackpropLinear(3, 2, prior=priors, batch_shape=(3,))


def test_slow_scales_move_a_share_of_what_their_parameter_moves(perturb):
    layer = perturb(BayesByBackpropLinear(3, 2, prior=MIXTURE, initial_scale=0.2, scale_rate=0.1))
    x = normal(5, 3, seed=1)
    scale = 0.2 * (layer.log_scale.exp() / 0.2) ** 0.1
    assert_close(layer.scale(), scale)
    f, posterior = layer(x), Normal(layer.loc, scale)
    weight = layer.loc + scale * layer.last_noise
    assert_close(f, layer.apply_weight(x, weight))
    assert_close(layer.kl_divergence(), (posterior.log_prob(weight) - MIXTURE.log_prob(weight)).sum(), 1e-6)
    drawn = layer.sample_weight((4_000,))
    assert_close(drawn.std(0), scale, 0.1)


def test_slow_scales_start_where_the_others_do():
    plain, slow = (BayesByBackpropLinear(3, 2, initial_scale=0.2, scale_rate=rate) for rate in (1, 0))
    assert_close(slow.scale(), plain.scale(), 1e-6)
    with pytest.raises(ValueError, match=r"scale_rate must be in \[0, 1\]; got 1.5"):
        BayesByBackpropLinear(3, 2, scale_rate=1.5)


def test_all_rows_share_the_weights(perturb):
    layer, x = perturb(BayesByBackpropLinear(3, 2)), normal(1, 3, seed=1)
    f = layer(x.expand(4, 3))
    assert_close(f, f[:1].expand(4, 2))


def test_estimate_of_the_kl_is_right_on_average():
    layer, n = BayesByBackpropLinear(1, 1, bias=False, prior=MIXTURE).double(), 20_000
    with torch.no_grad():
        layer.loc.fill_(0.4)
        layer.log_scale.fill_(math.log(0.3))
    q = stats.norm(0.4, 0.3)

    def integrand(w):
        return q.pdf(w) * (q.logpdf(w) - MIXTURE.log_prob(torch.tensor(w, dtype=torch.float64)).item())

    exact, _ = integrate.quad(integrand, 0.4 - 3, 0.4 + 3, points=[0.0, 0.4], limit=200)
    estimates = []
    for _ in range(2):
        layer(torch.ones(1, 1, dtype=torch.float64), (n // 2,))
        estimates.append(layer.kl_divergence().item())
    w = q.rvs(n, random_state=0)
    spread = np.std(q.logpdf(w) - MIXTURE.log_prob(torch.as_tensor(w)).numpy())
    assert abs(np.mean(estimates) - exact) < 4.5 * spread / math.sqrt(n)


def test_prior_draws_come_from_the_mixture():
    layer = BayesByBackpropLinear(1, 1, bias=False, prior=MIXTURE)
    drawn = layer.sample_prior_weight((5_000,)).flatten().double().numpy()
    cdf = lambda w: 0.3 * stats.norm.cdf(w, 0, 1.5) + 0.7 * stats.norm.cdf(w, 0, 0.1)  # noqa: E731
    assert stats.kstest(drawn, cdf).pvalue > 1e-3

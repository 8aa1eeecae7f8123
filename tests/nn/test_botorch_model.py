"""Acquisition functions of BoTorch on a Bayesian head."""

import copy

import pytest
import torch
from torch import nn

import vmg
from vmg.likelihoods import CategoricalLikelihood, GaussianLikelihood
from vmg.nn import BayesianHead

pytest.importorskip("botorch", reason="see the extra botorch")

from vmg.nn.botorch_model import BotorchModel

pytestmark = pytest.mark.filterwarnings("ignore")  # BoTorch and its libraries warn of matters of their own


def make_head(n_outputs=1, n=30, reach=1.0):
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Linear(2, 24), nn.Tanh()).double()
    x = reach * torch.rand(n, 2, dtype=torch.float64)
    peak = -(x - 0.6).square().sum(-1, keepdim=True)
    y = torch.cat([peak, x[:, :1]], -1)[:, :n_outputs] + 0.01 * torch.randn(n, n_outputs)
    return BayesianHead(backbone, GaussianLikelihood(n_outputs)).fit([(x, y)]), x, y


@pytest.mark.parametrize("n_outputs", [1, 2])
def test_the_posterior_is_that_of_the_head(n_outputs):
    head, _, _ = make_head(n_outputs)
    model, X = BotorchModel(head), torch.rand(5, 3, 2, dtype=torch.float64)
    posterior, noisy = model.posterior(X), model.posterior(X, observation_noise=True)
    assert posterior.mean.shape == (5, 3, n_outputs)
    for batch in range(5):
        mean, covariance = head.posterior(X[batch])
        torch.testing.assert_close(posterior.mean[batch], mean)
        torch.testing.assert_close(posterior.variance[batch], covariance.diagonal(dim1=-2, dim2=-1).mT)
        noise = vmg.predict(head, X[batch]).aleatoric_std.square()  # S/(ν − 2), the variance of its Student t
        torch.testing.assert_close(noisy.variance[batch] - posterior.variance[batch], noise)
        first = model.posterior(X, output_indices=[0]).distribution.covariance_matrix[batch]
        torch.testing.assert_close(first, covariance[0])
    known = model.posterior(X, observation_noise=torch.full((5, 3, n_outputs), 0.5, dtype=torch.float64))
    torch.testing.assert_close(known.variance - posterior.variance, torch.full_like(known.variance, 0.5))


def test_draws_are_joint_over_the_points():
    head, _, _ = make_head()
    X = torch.rand(1, 2, dtype=torch.float64).expand(4, 2)
    drawn = BotorchModel(head).posterior(X).rsample(torch.Size([8]))
    assert drawn.shape == (8, 4, 1)
    assert (drawn.std(1) < 0.05 * drawn.std(0).mean()).all(), "equal points have equal values in each draw"


def test_expected_improvement_is_its_closed_form():
    from botorch.acquisition import ExpectedImprovement

    head, x, y = make_head()
    found = ExpectedImprovement(BotorchModel(head), best_f=y.max())(x.unsqueeze(1))
    mean, covariance = head.posterior(x)
    spread = covariance[0].diagonal().sqrt()
    u, normal = (mean[:, 0] - y.max()) / spread, torch.distributions.Normal(0.0, 1.0)
    torch.testing.assert_close(found, spread * (u * normal.cdf(u) + normal.log_prob(u).exp()), atol=1e-9, rtol=1e-5)


@pytest.mark.works_with("BoTorch", "`vmg.nn.botorch_model.BotorchModel(head)`")
def test_a_search_finds_the_peak():
    from botorch.acquisition.logei import qLogExpectedImprovement
    from botorch.optim import optimize_acqf

    head, _, y = make_head(n=6, reach=0.4)
    assert y.max() < -0.05, "the first rows are away from the peak"
    bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    for _ in range(5):
        acquisition = qLogExpectedImprovement(BotorchModel(head), best_f=y.max())
        found, value = optimize_acqf(acquisition, bounds, q=2, num_restarts=2, raw_samples=16)
        assert torch.isfinite(value)
        value_there = -(found - 0.6).square().sum(-1, keepdim=True)
        head.update(found, value_there)
        y = torch.cat([y, value_there])
    assert y.max() > -0.005, "within 0.07 of the peak"


def test_conditioning_is_an_update():
    head, x, _ = make_head()
    model, new_x = BotorchModel(head), torch.rand(3, 2, dtype=torch.float64)
    new_y = torch.randn(3, 1, dtype=torch.float64)
    before = model.posterior(x).mean
    conditioned = model.condition_on_observations(new_x, new_y)
    torch.testing.assert_close(model.posterior(x).mean, before)
    torch.testing.assert_close(conditioned.posterior(x).mean, head.update(new_x, new_y).posterior(x).mean)
    with pytest.raises(ValueError, match=r"Y must be finite, \[..., 3, 1\]; got shape \(2, 1\)"):
        model.condition_on_observations(new_x, new_y[:2])


@pytest.mark.parametrize("n_outputs", [1, 2])
def test_each_fantasy_is_an_exact_update(n_outputs):
    from botorch.sampling.normal import SobolQMCNormalSampler

    head, x, _ = make_head(n_outputs)
    model, new_x = BotorchModel(head), torch.rand(3, 2, dtype=torch.float64, requires_grad=True)
    sampler = SobolQMCNormalSampler(torch.Size([4]), seed=0)
    fantasies = model.fantasize(new_x, sampler)
    targets = sampler(model.posterior(new_x, observation_noise=True)).detach()
    found = fantasies.posterior(x)
    assert fantasies.batch_shape == (4,)
    for number, y in enumerate(targets):
        mean, covariance = copy.deepcopy(head).update(new_x.detach(), y).posterior(x)
        torch.testing.assert_close(found.mean[number], mean)
        torch.testing.assert_close(found.variance[number], covariance.diagonal(dim1=-2, dim2=-1).mT)
    found.mean.amax(1).sum().backward()
    assert new_x.grad.isfinite().all()
    assert new_x.grad.any(), "the knowledge gradient needs it"


def test_classes_are_refused():
    head = BayesianHead(nn.Identity(), CategoricalLikelihood()).fit([(torch.randn(9, 2), torch.arange(9) % 3)])
    with pytest.raises(ValueError, match="head must have Gaussian noise; got SoftmaxOutput"):
        BotorchModel(head)

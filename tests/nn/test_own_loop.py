"""A loop of one's own: the noise, several samples, accumulation, warm-up, groups."""

import pytest
import torch
from torch import nn

import vmg
from vmg.likelihoods import FullCovarianceLikelihood, GaussianLikelihood, KnownNoiseLikelihood
from vmg.nn import MLP, bayesianize, parameter_groups, use_generator


def line(n=200, noise=0.3):
    x = torch.randn(n, 2)
    return x, x[:, :1] + noise * torch.randn(n, 1)


@pytest.mark.parametrize("make", [GaussianLikelihood, lambda: FullCovarianceLikelihood(1)])
def test_a_loop_learns_the_noise(make):
    """Without a call of update_ it was never learned: true noise 0.3, believed 0.03."""
    x, y = line()
    model, likelihood = bayesianize(nn.Linear(2, 1), n_data=200), make()
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(300):
        optimiser.zero_grad()
        (-vmg.elbo(model, likelihood, x, y, n_data=200).total).backward()
        optimiser.step()
    _, variance = likelihood.moments(torch.zeros(1, 1))
    assert 0.25 < variance.sqrt().item() < 0.4


def test_the_noise_is_left_alone_where_nothing_is_trained():
    x, y = line()
    model, likelihood = bayesianize(nn.Linear(2, 1)), GaussianLikelihood()
    with torch.no_grad():
        vmg.elbo(model, likelihood, x, y, n_data=200)
    likelihood.eval()
    vmg.elbo(model, likelihood, x, y, n_data=200)
    assert likelihood.is_untouched()
    likelihood.train()
    vmg.elbo(model, likelihood, x, y, n_data=200)
    assert not likelihood.is_untouched()


def test_terms_have_the_outputs():
    x, y = line(10)
    model = bayesianize(nn.Linear(2, 1))
    terms = vmg.elbo(model, KnownNoiseLikelihood(1.0), x, y, n_data=10)
    torch.testing.assert_close(KnownNoiseLikelihood(1.0).expected_log_prob(terms.f, y).mean(), terms[0])


@pytest.mark.parametrize("batch_shape", [(), (2,)])
def test_several_samples_are_a_mean_of_single_ones(batch_shape):
    x, y = line(10)
    y = y.expand(*batch_shape, 10, 1)
    weight = (torch.rand(10) + 0.5).expand(*batch_shape, 10)
    network = MLP(2, (4,), 1, batch_shape=batch_shape)
    likelihood = GaussianLikelihood(batch_shape=batch_shape)
    use_generator(network, torch.Generator().manual_seed(3))
    together = vmg.elbo(network, likelihood, x, y, n_data=10, weight=weight, n_samples=3)
    assert together.f.shape == (3, *batch_shape, 10, 1)
    use_generator(network, torch.Generator().manual_seed(3))
    likelihood.eval()  # with the noise of the first call
    single = [vmg.elbo(network, likelihood, x, y, n_data=10, weight=weight) for _ in range(3)]
    torch.testing.assert_close(together.total, torch.stack([terms.total for terms in single]).mean(0))
    squares = torch.stack([terms.f for terms in single]).sub(y).square()
    expected = 1e-3 + 5 * (squares * weight.unsqueeze(-1)).mean((0, -2))  # the first step goes all the way
    torch.testing.assert_close(likelihood.log_rate.exp(), expected)
    with pytest.raises(ValueError, match="n_samples must be at least 1; got 0"):
        vmg.elbo(network, likelihood, x, y, n_data=10, n_samples=0)


def test_accumulated_gradients_are_those_of_the_whole_batch():
    """The KL is in each part's bound in full, so the mean over parts has it once."""
    x, y = line(12)
    model = bayesianize(nn.Linear(2, 1), n_pseudo=0, initial_scale=1e-9)
    with torch.no_grad():
        model.row.log_scale.fill_(-30)

    def gradient(parts):
        model.zero_grad()
        for rows in torch.arange(12).chunk(parts):
            (-vmg.elbo(model, KnownNoiseLikelihood(1.0), x[rows], y[rows], n_data=12).total / parts).backward()
        return model.loc.grad.clone()

    torch.testing.assert_close(gradient(3), gradient(1), rtol=1e-4, atol=1e-5)


def test_warm_up():
    assert [vmg.kl_warmup(step, 3) for step in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]
    for wrong in ((0, 0), (-1, 5)):
        with pytest.raises(ValueError, match="n_steps must be at least 1 and step at least 0"):
            vmg.kl_warmup(*wrong)


def test_groups_decay_deterministic_matrices_only():
    plain = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 4), nn.Linear(4, 2))
    plain[2].bias.requires_grad_(False)
    with pytest.warns(UserWarning, match="some of its parameters are frozen"):
        model = bayesianize(plain, skip="0")
    bayesian, matrices, rest = parameter_groups(model, weight_decay=0.1, lr=3e-3)
    assert (bayesian["weight_decay"], bayesian["lr"]) == (0.0, 3e-3)
    assert {id(p) for p in bayesian["params"]} == {id(p) for p in model[3].parameters()}
    assert [id(p) for p in matrices["params"]] == [id(model[0].weight), id(model[2].weight)]
    assert matrices["weight_decay"] == 0.1
    assert [p.dim() for p in rest["params"]] == [1, 1, 1]
    torch.optim.AdamW([bayesian, matrices, rest], lr=1e-3)


@pytest.mark.works_with("GradScaler", "the KL is part of the scaled loss")
def test_scaled_gradients_are_those_of_the_loss():
    x, y = line(20)
    model = bayesianize(nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1)), n_data=20)
    likelihood = KnownNoiseLikelihood(1.0)

    def gradients(scaler):
        torch.manual_seed(1)
        model.zero_grad()
        loss = -vmg.elbo(model, likelihood, x, y, n_data=20).total
        optimiser = torch.optim.SGD(model.parameters(), lr=1e-3)
        if scaler is None:
            loss.backward()
        else:
            scaler.scale(loss).backward()
            scaler.unscale_(optimiser)
        return [p.grad.clone() for p in model.parameters()]

    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    torch.testing.assert_close(gradients(None), gradients(scaler), rtol=1e-4, atol=1e-6)

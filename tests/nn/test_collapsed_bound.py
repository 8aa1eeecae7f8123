"""The bound with the output layer integrated out: exact for linear models, below the evidence of tiny networks."""

import math

import pytest
import torch
from torch import nn

from vmg.math.evidence import NoisePrior, log_evidence
from vmg.nn import MLP, BayesianHead
from vmg.nn.mlp import Elementwise
from vmg.objective import collapsed_elbo
from vmg.priors import IsotropicPrior

PRIOR = NoisePrior(2.0, 0.5)


def hidden_stack(n_in, sizes, **options):
    """Matrix Gaussian hidden layers as a module that makes features."""
    layers = MLP(n_in, sizes[:-1], sizes[-1], activation="tanh", sampling="weights", prior=IsotropicPrior(), **options)
    return nn.Sequential(layers, Elementwise(torch.tanh))


def tiny_head(seed, n_units=2):
    torch.manual_seed(seed)
    head = BayesianHead(hidden_stack(1, (n_units,)), n_features=n_units, noise_prior=PRIOR).double()
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.add_(0.7 * torch.randn_like(parameter))
    x = torch.randn(6, 1, dtype=torch.float64)
    y = torch.sin(2 * x) + 0.3 * torch.randn_like(x)
    return head, x, y


def evidence_by_sampling(head, x, y, n_samples):
    """log p(y) with hidden weights drawn from their prior, and its standard error."""
    layer = head.features[0].layers[0]
    with torch.no_grad():
        hidden = torch.tanh(layer.apply_weight(x, layer.sample_prior_weight((n_samples,))))
        phi = torch.cat([hidden, torch.ones_like(hidden[..., :1])], -1)
        values = log_evidence(phi, y, head.output.prior_precision(), prior=PRIOR)
        peak = values.max()
        ratios = (values - peak).exp()
    return (peak + ratios.mean().log()).item(), (ratios.std() / ratios.mean() / math.sqrt(n_samples)).item()


def bound_by_sampling(head, x, y, n_samples):
    with torch.no_grad():
        draws = torch.stack([collapsed_elbo(head, x, y).total for _ in range(n_samples)]) * len(x)
    return draws.mean().item(), (draws.std() / math.sqrt(n_samples)).item()


def test_linear_models_have_their_exact_log_evidence():
    torch.manual_seed(0)
    x, y = torch.randn(9, 3, dtype=torch.float64), torch.randn(9, 2, dtype=torch.float64)
    head = BayesianHead(nn.Identity(), n_features=3, n_outputs=2, noise_prior=PRIOR).double()
    phi = torch.cat([x, torch.ones(9, 1, dtype=torch.float64)], -1)
    exact = log_evidence(phi, y, torch.ones(4, dtype=torch.float64), prior=PRIOR)
    terms = collapsed_elbo(head, x, y)
    assert terms.kl.item() == 0.0
    torch.testing.assert_close(terms.total * 9, exact)


@pytest.mark.parametrize("start", range(0, 200, 20))
def test_it_never_exceeds_the_evidence_of_a_tiny_network(start):
    for seed in range(start, start + 20):
        head, x, y = tiny_head(seed)
        evidence, evidence_error = evidence_by_sampling(head, x, y, 4000)
        bound, bound_error = bound_by_sampling(head, x, y, 40)
        assert bound <= evidence + 4 * (evidence_error + bound_error)


def test_training_brings_it_close_to_the_evidence():
    head, x, y = tiny_head(3)
    evidence, _ = evidence_by_sampling(head, x, y, 20_000)
    before, _ = bound_by_sampling(head, x, y, 200)
    hidden = list(head.features.parameters())  # precisions stay, so that the evidence does
    optimiser = torch.optim.Adam(hidden, lr=0.03)
    for _ in range(400):
        optimiser.zero_grad()
        (-collapsed_elbo(head, x, y).total).backward()
        optimiser.step()
    after, error = bound_by_sampling(head, x, y, 400)
    assert before < after <= evidence + 4 * error
    assert evidence - after < 1.0


def test_replicas_are_a_loop_and_weights_repeat_rows():
    torch.manual_seed(1)
    stack = hidden_stack(2, (3,), batch_shape=(2,))
    head = BayesianHead(stack, n_features=3, noise_prior=PRIOR, batch_shape=(2,)).double()
    x, y = torch.randn(5, 2, dtype=torch.float64), torch.randn(5, 1, dtype=torch.float64)
    counts = torch.tensor([1, 2, 0, 3, 1])
    torch.manual_seed(5)
    weighted = collapsed_elbo(head, x, y, weight=counts.double().expand(2, 5))
    torch.manual_seed(5)
    repeated = collapsed_elbo(head, x.repeat_interleave(counts, 0), y.repeat_interleave(counts, 0))
    torch.testing.assert_close(weighted.total, repeated.total)
    torch.testing.assert_close(weighted.kl * 7, repeated.kl * 7)

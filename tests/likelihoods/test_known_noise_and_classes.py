"""Noise that is known, and classes."""

import pytest
import torch
from likelihood_cases import C, N, data
from torch.distributions import Normal

from reference import assert_close, normal
from vmg.likelihoods import CategoricalLikelihood, KnownNoiseLikelihood

pytestmark = pytest.mark.usefixtures("double_precision")


# Known noise


@pytest.mark.parametrize("scale", [0.3, torch.tensor([0.3, 2.0, 1.0], dtype=torch.float64)])
def test_known_noise(scale):
    f, y = data()
    likelihood = KnownNoiseLikelihood(scale)
    assert_close(likelihood.expected_log_prob(f, y), Normal(f, scale).log_prob(y).sum(-1))
    df, student_scale = likelihood.student()
    assert torch.isinf(df).all()
    assert_close(student_scale, torch.as_tensor(scale).reshape(-1))
    assert likelihood.kl_divergence() == 0


# Classes


@pytest.mark.parametrize("leading", [(), (2,), (4, 2)])
def test_categorical_is_minus_cross_entropy(leading):
    f = normal(*leading, N, C, seed=1)
    y = torch.randint(C, (*leading, N), generator=torch.Generator().manual_seed(0))
    expected = -torch.nn.functional.cross_entropy(f.reshape(-1, C), y.reshape(-1), reduction="none")
    assert_close(CategoricalLikelihood().expected_log_prob(f, y), expected.reshape(*leading, N))


def test_categorical_survives_large_outputs():
    f = torch.tensor([[1000.0, 0.0], [0.0, 1000.0]])
    assert_close(CategoricalLikelihood().expected_log_prob(f, torch.tensor([0, 0])), torch.tensor([0.0, -1000.0]))

"""A temperature from held-out rows: at its optimum, and used by whatever is predicted."""

import math

import pytest
import torch

from reference import assert_close, normal
from vmg.likelihoods import CategoricalLikelihood, TemperedCategoricalLikelihood

pytestmark = pytest.mark.usefixtures("double_precision")


def test_it_is_the_likelihood_of_cooler_outputs():
    f, y = normal(2, 5, 3, seed=0), torch.tensor([0, 1, 2, 1, 0]).expand(2, 5)
    tempered, plain = TemperedCategoricalLikelihood(0.5), CategoricalLikelihood()
    assert_close(tempered.expected_log_prob(f, y), plain.expected_log_prob(2 * f, y))
    for mine, other in zip(tempered.moments(f), plain.moments(2 * f), strict=True):
        assert_close(mine, other)
    value, gradient = tempered.score(f, y)
    other, slope = plain.score(2 * f, y)
    assert_close(value, other)
    assert_close(gradient, 2 * slope)


@pytest.mark.parametrize("true", [0.05, 0.5, 1.0, 4.0])
def test_the_temperature_that_made_the_classes_is_found(true):
    f = normal(20_000, 4, seed=0) * true
    torch.manual_seed(0)
    y = torch.distributions.Categorical(logits=f / true).sample()
    found = TemperedCategoricalLikelihood().fit(f, y).temperature.item()
    assert math.log(found / true) == pytest.approx(0, abs=0.05)


def test_members_are_judged_together():
    f, y = normal(3, 200, 4, seed=0), torch.arange(200) % 4
    f[:, torch.arange(200), y] += 1.5
    likelihood = TemperedCategoricalLikelihood().fit(f, y)

    def loss(temperature):
        p = torch.softmax(f / temperature, -1).mean(0)
        return -p[torch.arange(200), y].log().mean().item()

    found = likelihood.temperature.item()
    assert loss(found) <= min(loss(found * factor) for factor in (0.5, 0.99, 1.01, 2.0))
    alone = [TemperedCategoricalLikelihood().fit(member, y).temperature.item() for member in f]
    assert found < min(alone)  # a mean of members is less sure than they are


def test_the_temperature_is_state():
    likelihood = TemperedCategoricalLikelihood(0.25)
    other = TemperedCategoricalLikelihood()
    other.load_state_dict(likelihood.state_dict())
    assert other.temperature == 0.25


def test_refusals():
    with pytest.raises(ValueError, match="temperature must be positive; got 0"):
        TemperedCategoricalLikelihood(0)
    likelihood, f = TemperedCategoricalLikelihood(), torch.zeros(2, 5, 3)
    with pytest.raises(ValueError, match="one for each of the rows"):
        likelihood.fit(f, torch.zeros(4, dtype=torch.long))
    with pytest.raises(ValueError, match="integer classes"):
        likelihood.fit(f, torch.zeros(5))
    with pytest.raises(ValueError, match="finite"):
        likelihood.fit(f / 0, torch.zeros(5, dtype=torch.long))

import numpy as np
import pytest
import torch

from vmg.nn import MLP
from vmg.prediction import ClassPrediction
from vmg_paper.experiments import digits
from vmg_paper.experiments.digits import REJECTION_RATES, mean_probabilities, rejection_errors, score

CLASSES = np.arange(3)


def prediction(*draws):
    return ClassPrediction(np.array(draws, dtype=float), CLASSES)


def test_scores_by_hand():
    sure, unsure = [0.8, 0.1, 0.1], [0.4, 0.3, 0.3]
    known = prediction([sure, sure, unsure, unsure])
    found = score(known, np.array([0, 0, 0, 1]), {"other": prediction([unsure, unsure, sure])})
    assert found["error_percent"] == 25
    assert found["log_likelihood"] == pytest.approx(np.log([0.8, 0.8, 0.4, 0.3]).mean())
    # negatives (0, 0, 1, 1), positives (1, 1, 0) by order of entropy: 2 · (2 + 1) / … pairs won, ties half
    assert found["auroc"]["other"]["entropy"] == pytest.approx((2 * (2 + 1) + 1) / 12)
    assert found["auroc"]["other"]["mutual_information"] is None
    assert found["ece"] == pytest.approx(0.5 * 0.2 + 0.5 * 0.1)
    assert found["rejection"]["rates_percent"] == list(REJECTION_RATES)


def test_draws_that_disagree_are_told_by_mutual_information():
    flat, one, two = [1 / 3] * 3, [1, 0, 0], [0, 1, 0]
    found = score(prediction([flat], [flat]), np.array([0]), {"other": prediction([one], [two])})
    assert found["auroc"]["other"] == {"entropy": 0.0, "mutual_information": 1.0}


def test_errors_fall_when_the_doubtful_are_rejected():
    uncertainty = np.linspace(0, 1, 200)
    correct = uncertainty < 0.95  # the ten most uncertain are wrong
    np.testing.assert_allclose(
        rejection_errors(uncertainty, correct), [5, 100 * 8 / 198, 100 * 6 / 196, 0, 0, 0], atol=1e-12
    )


def test_probabilities_of_the_mean_network(monkeypatch):
    monkeypatch.setattr(digits, "ROWS_AT_ONCE", 4)
    network, x = MLP(5, (6,), 3, n_pseudo=2), torch.randn(9, 5)
    mean = mean_probabilities(network, x)
    expected = network.double().forward_mean(x.double()).detach().softmax(-1).numpy()
    np.testing.assert_allclose(mean, expected, atol=1e-12)

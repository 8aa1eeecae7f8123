"""Predicted classes, and how much of their doubt is ignorance."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vmg.prediction import ClassPrediction

S, N = 6, 4


def class_mixture(seed=0, n_classes=3, n_draws=S):
    samples = np.random.default_rng(seed).dirichlet(np.full(n_classes, 0.5), size=(n_draws, N))
    return ClassPrediction(samples, np.array(["ant", "bee", "cat", "dog"][:n_classes]))


def entropy(p):
    return -sum(v * math.log(v) for v in p if v > 0)


def test_class_probabilities_and_entropies():
    p = class_mixture()
    mean = p.samples.mean(0)
    np.testing.assert_allclose(p.probabilities, mean)
    np.testing.assert_allclose(p.probabilities.sum(-1), 1, rtol=1e-15)
    assert (p.label == p.classes[mean.argmax(-1)]).all()
    total = np.array([entropy(row) for row in mean])
    expected = np.mean([[entropy(row) for row in draw] for draw in p.samples], axis=0)
    np.testing.assert_allclose(p.predictive_entropy, total)
    np.testing.assert_allclose(p.expected_entropy, expected)
    np.testing.assert_allclose(p.mutual_information, total - expected)


def test_mutual_information_of_draws_that_agree_and_that_do_not():
    certain = np.eye(2)[[0, 1]][:, None]  # each of two draws is sure of another class
    np.testing.assert_allclose(ClassPrediction(certain, np.arange(2)).mutual_information, math.log(2))
    agreed = np.tile(np.array([0.3, 0.7]), (S, N, 1))
    np.testing.assert_allclose(ClassPrediction(agreed, np.arange(2)).mutual_information, 0, atol=1e-15)


@settings(deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 4), st.integers(1, 4))
def test_mutual_information_has_its_bounds(seed, n_classes, n_draws):
    p = class_mixture(seed, n_classes, n_draws)
    assert (p.mutual_information >= 0).all()
    assert (p.mutual_information <= p.predictive_entropy + 1e-12).all()
    assert (p.mutual_information <= math.log(n_draws) + 1e-12).all()
    assert (p.predictive_entropy <= math.log(n_classes) + 1e-12).all()


def test_class_log_prob():
    p = class_mixture()
    y = ["cat", "ant", "bee", "ant"]
    expected = [math.log(p.probabilities[i, ["ant", "bee", "cat"].index(label)]) for i, label in enumerate(y)]
    np.testing.assert_allclose(p.log_prob(y), expected)


def test_log_prob_of_an_impossible_class_is_finite():
    p = ClassPrediction(np.tile([1.0, 0.0], (S, N, 1)), np.arange(2))
    assert (p.log_prob([0] * N) == 0).all()
    assert (p.log_prob([1] * N) < -700).all()
    assert np.isfinite(p.log_prob([1] * N)).all()


def test_labels_of_no_class_or_of_the_wrong_shape():
    for label in ("aardvark", "bear", "zebra"):
        with pytest.raises(ValueError, match=rf"y must be among the classes .*got \['{label}'\]"):
            class_mixture().log_prob(["ant", "bee", label, "cat"])
    for y in (["ant"], ["ant"] * (N + 1), [["ant"] * N]):
        with pytest.raises(ValueError, match="y must have one label for each of 4 rows; got shape"):
            class_mixture().log_prob(y)

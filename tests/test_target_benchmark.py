"""The scores of ``benchmarks/targets.py``."""

from pathlib import Path

import numpy as np
import pytest

from vmg.files import read_lines

ROOT = Path(__file__).parents[1]


@pytest.fixture
def targets(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import targets

    return targets


def table(n=120, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2))
    return X, rng.poisson(np.exp(1 + X[:, 0])).astype(float)


def test_densities_of_boosting_are_slopes_of_their_cdf(targets):
    X, _ = table()
    y = np.exp(1 + X[:, 0] + 0.5 * np.random.default_rng(1).normal(size=len(X)))
    step = 1e-6
    for kind in (targets.LogBoosting, targets.QuantileBoosting):
        found = kind().fit(X, y).predict(X)
        slope = (found.cdf(y + step) - found.cdf(y - step)) / (2 * step)
        np.testing.assert_allclose(np.median(np.abs(np.exp(found.log_prob(y)) / slope - 1)), 0, atol=1e-4)
        assert (found.cdf(np.full(len(y), 1e9)) > 0.999).all() and (found.cdf(np.full(len(y), -1e9)) < 1e-3).all()


def test_the_cdf_of_quantiles_passes_through_them(targets):
    X, y = table()
    found = targets.QuantileBoosting().fit(X, y).predict(X)
    for k, level in enumerate(targets.LEVELS):
        np.testing.assert_allclose(found.cdf(found.knots[:, k]), level, atol=1e-9)


def test_the_score_of_a_count_is_the_probability_of_its_cell(targets):
    X, y = table()
    found = targets.LogBoosting().fit(X, y).predict(X)
    scores = targets.log_likelihoods(found, y, y)
    total = sum(np.exp(targets.log_likelihoods(found, np.full(len(y), float(k)), y)) for k in range(400))
    assert (scores < 0).all()
    np.testing.assert_allclose(total, 1, rtol=1e-3)


def test_the_page_shows_what_the_file_holds(targets):
    lines = read_lines(ROOT / "results" / "targets.jsonl")
    assert targets.show(lines) in (ROOT / "docs" / "targets.md").read_text(encoding="utf-8")

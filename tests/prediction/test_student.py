"""Predictions in closed form, against SciPy's Student t."""

import numpy as np
import pytest
from scipy import stats

from vmg.prediction.student import StudentPrediction


def prediction(n=5, c=1, k=3, squeeze=True, seed=0):
    """A function with a known factor, [K, N, C]."""
    rng = np.random.default_rng(seed)
    factor = rng.normal(size=(k, n, c))
    degrees = rng.uniform(3, 12, c)
    function_scale = np.sqrt((factor**2).sum(0))
    return StudentPrediction(
        rng.normal(size=(n, c)), rng.uniform(0.2, 2, (n, c)), function_scale, degrees, lambda: factor, squeeze
    )


def reference(p):
    """SciPy's distribution of each row and output, [N, C]."""
    return stats.t(p.df, p.loc, np.sqrt(p.noise_scale**2 + p.function_scale**2))


@pytest.fixture(params=[1, 3], ids=["one output", "three outputs"])
def pair(request):
    p = prediction(c=request.param)
    return p, reference(p)


def squeezed(values):
    return values[..., 0] if values.shape[-1] == 1 else values


def test_density_distribution_and_quantiles(pair):
    p, t = pair
    y = np.random.default_rng(1).normal(size=p.loc.shape) * 3
    np.testing.assert_allclose(p.log_prob(y), t.logpdf(y).sum(-1), rtol=1e-10)
    np.testing.assert_allclose(p.cdf(y), squeezed(t.cdf(y)), rtol=1e-10)
    np.testing.assert_allclose(p.quantile(0.3), squeezed(t.ppf(0.3)), rtol=1e-9)
    for coverage in (0.5, 0.9, 1 - 1e-12):
        low, high = t.ppf((1 - coverage) / 2), t.isf((1 - coverage) / 2)
        np.testing.assert_allclose(p.interval(coverage)[..., 0], squeezed(low), rtol=1e-6)
        np.testing.assert_allclose(p.interval(coverage)[..., 1], squeezed(high), rtol=1e-6)


def test_the_factor_is_asked_for_only_where_it_is_needed():
    def never():
        raise AssertionError

    p = prediction()
    p = StudentPrediction(p.loc, p.noise_scale, p.function_scale, p.df, never)
    assert len([p.mean, p.std, p.interval(), p.log_prob(p.loc), p.crps(p.loc), p.quantile(0.5)]) == 6

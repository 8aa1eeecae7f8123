import math

import numpy as np
import pytest
from scipy import optimize, stats

from vmg.prediction import Prediction

S, N = 6, 4
GAUSSIAN = np.full((1, 1, 1), np.inf)


def mixture(n_outputs=1, seed=0, df=None, squeeze=True):
    """Draws, noise scales and degrees of freedom that all differ."""
    rng = np.random.default_rng(seed)
    shape = (S, N, n_outputs)
    if df is None:
        df = rng.uniform(5, 30, size=shape)
    return Prediction(rng.normal(size=shape), rng.uniform(0.3, 1.5, size=shape), df, squeeze)


def components(prediction, row, output):
    """The mixture of one row and output as scipy's distributions."""
    parts = (np.broadcast_to(a, prediction.loc.shape) for a in (prediction.df, prediction.loc, prediction.scale))
    arguments = zip(*(part[:, row, output] for part in parts), strict=True)
    return [stats.norm(m, s) if math.isinf(v) else stats.t(v, m, s) for v, m, s in arguments]


def each(prediction, function):
    """function(components) of every row and output, [N, C]."""
    rows, outputs = range(prediction.n_rows), range(prediction.n_outputs)
    return np.array([[function(components(prediction, i, j)) for j in outputs] for i in rows])


def reference_variance(parts):
    """E[var] + E[mean²] − E[mean]²."""
    means = np.array([part.mean() for part in parts])
    return np.mean([part.var() + part.mean() ** 2 for part in parts]) - means.mean() ** 2


def reference_cdf(parts, value):
    return np.mean([part.cdf(value) for part in parts])


def reference_quantile(parts, level):
    return optimize.brentq(lambda value: reference_cdf(parts, value) - level, -1e4, 1e4, xtol=1e-13)


MIXED = np.where(np.arange(S)[:, None, None] % 2, np.inf, 7.0)
BOTH = pytest.mark.parametrize("df", [None, GAUSSIAN, MIXED], ids=["student", "gaussian", "mixed"])
OUTPUTS = pytest.mark.parametrize("n_outputs", [1, 3])


@BOTH
@OUTPUTS
def test_moments_distribution_and_quantiles_are_those_of_the_mixture(n_outputs, df):
    p = mixture(n_outputs, df=df, squeeze=False)
    np.testing.assert_allclose(p.mean, each(p, lambda parts: np.mean([part.mean() for part in parts])))
    np.testing.assert_allclose(p.std**2, each(p, reference_variance))
    np.testing.assert_allclose(p.aleatoric_std**2, each(p, lambda parts: np.mean([part.var() for part in parts])))
    np.testing.assert_allclose(p.epistemic_std**2, each(p, lambda parts: np.var([part.mean() for part in parts])))
    for value in (-4.0, -0.3, 0.0, 2.5):
        expected = each(p, lambda parts, value=value: reference_cdf(parts, value))
        np.testing.assert_allclose(p.cdf(np.full((N, n_outputs), value)), expected, rtol=1e-9)
    for level in (0.001, 0.3, 0.5, 0.95):
        expected = each(p, lambda parts, level=level: reference_quantile(parts, level))
        np.testing.assert_allclose(p.quantile(level), expected, atol=1e-8)
    y = np.random.default_rng(1).normal(size=(N, n_outputs))  # the density is of all outputs together
    densities = [[[part.pdf(y[i, c]) for part in components(p, i, c)] for c in range(n_outputs)] for i in range(N)]
    np.testing.assert_allclose(p.log_prob(y), np.log(np.prod(densities, 1).mean(-1)))


@pytest.mark.parametrize("shape", [(1, 1, 1), (S, 1, 1), (1, 1, 2), (S, 1, 2), (1, N, 2), (S, N, 2)])
def test_scale_and_df_broadcast(shape):
    rng = np.random.default_rng(0)
    loc, scale, df = rng.normal(size=(S, N, 2)), rng.uniform(1, 2, shape), rng.uniform(3, 9, shape)
    short = Prediction(loc, scale, df)
    full = Prediction(loc, *(np.broadcast_to(a, loc.shape).copy() for a in (scale, df)))
    y = np.zeros((N, 2))
    for name in ("mean", "std", "aleatoric_std", "epistemic_std"):
        np.testing.assert_allclose(getattr(short, name), getattr(full, name), err_msg=name)
    np.testing.assert_allclose(short.log_prob(y), full.log_prob(y))
    np.testing.assert_allclose(short.cdf(y), full.cdf(y))
    np.testing.assert_allclose(short.interval(0.8), full.interval(0.8))
    np.testing.assert_allclose(short.row_covariance(), full.row_covariance())
    np.testing.assert_allclose(short.covariance(), full.covariance())
    np.testing.assert_array_equal(short.sample(3, 0), full.sample(3, 0))


@OUTPUTS
def test_covariances_of_rows_and_of_outputs(n_outputs):
    p = mixture(n_outputs, squeeze=False)
    covariance = p.row_covariance()
    assert covariance.shape == (N, N, n_outputs)
    for c in range(n_outputs):
        expected = np.cov(p.loc[:, :, c].T, bias=True) + np.diag(p.aleatoric_std[:, c] ** 2)
        np.testing.assert_allclose(covariance[..., c], expected)
        assert np.linalg.eigvalsh(covariance[..., c]).min() > 0
    np.testing.assert_allclose(np.einsum("nnc->nc", covariance), p.std**2)
    for i, covariance in enumerate(p.covariance()):
        expected = np.cov(p.loc[:, i].T, bias=True) + np.diag(p.aleatoric_std[i] ** 2)
        np.testing.assert_allclose(covariance, expected)


@pytest.mark.parametrize("df", [1.0, 2.0])
def test_noise_without_a_variance(df):
    """Student-t with at most two degrees of freedom: infinite variance, but nothing is NaN."""
    p = mixture(2, df=np.full((1, 1, 1), df))
    assert np.isinf(p.std).all()
    assert np.isinf(p.aleatoric_std).all()
    assert np.isfinite(p.epistemic_std).all()
    for matrix in (*np.moveaxis(p.row_covariance(), -1, 0), *p.covariance()):
        off_diagonal = ~np.eye(len(matrix), dtype=bool)
        assert np.isposinf(matrix.diagonal()).all()
        assert np.isfinite(matrix[off_diagonal]).all()


@pytest.mark.parametrize(("shift", "unit"), [(0, 1e-9), (0, 1e9), (1e6, 1e-2), (-1e9, 1e3)])
def test_quantiles_follow_units(shift, unit):
    p = mixture(2)
    moved = Prediction(shift + unit * p.loc, unit * p.scale, p.df)
    np.testing.assert_allclose((moved.interval(0.9) - shift) / unit, p.interval(0.9), atol=1e-7)


def test_quantile_between_distant_draws():
    """Half of the mixture here, half far away: the quantiles of either half are found."""
    p = Prediction(np.array([0.0, 1e6])[:, None, None], np.ones((1, 1, 1)), GAUSSIAN)
    np.testing.assert_allclose(p.quantile([0.25, 0.75, 0.1])[0], [0, 1e6, stats.norm.ppf(0.2)], atol=1e-8)


@pytest.mark.parametrize(("n_outputs", "squeeze", "shape"), [(1, True, (N,)), (1, False, (N, 1)), (2, True, (N, 2))])
def test_shapes(n_outputs, squeeze, shape):
    p = mixture(n_outputs, squeeze=squeeze)
    for name in ("mean", "std", "aleatoric_std", "epistemic_std"):
        assert getattr(p, name).shape == shape
    assert p.quantile(0.5).shape == p.cdf(np.zeros((N, n_outputs))).shape == shape
    assert p.quantile([0.5]).shape == (*shape, 1) and p.quantile([0.1, 0.5, 0.9]).shape == (*shape, 3)
    assert p.interval(0.5).shape == (*shape, 2) and p.sample(5, 0).shape == (5, *shape)
    assert p.row_covariance().shape == (N, *shape) and p.covariance().shape == (N, n_outputs, n_outputs)
    assert p.log_prob(np.zeros((N, n_outputs))).shape == (N,)


@pytest.mark.parametrize("tail", [1e-10, 1e-13, 2.0**-53])
@pytest.mark.parametrize("df", [math.inf, 5.0])
def test_intervals_far_into_the_tails(tail, df):
    """Conformal calibration of an overconfident model asks for these."""
    p = Prediction(np.zeros((1, 1, 1)), np.ones((1, 1, 1)), np.full((1, 1, 1), df))
    end = stats.norm.isf(tail) if math.isinf(df) else stats.t(df).isf(tail)
    np.testing.assert_allclose(p.interval_at(np.asarray(1 - 2 * tail))[0], [-end, end], rtol=1e-3)


def test_many_narrow_draws():
    """A cdf of steep stairs, in which a search must not wander."""
    loc = np.random.default_rng(0).normal(size=(31, N, 1))
    p = Prediction(loc, np.full((1, 1, 1), 1e-4), GAUSSIAN)
    for level in (0.01, 0.3, 0.5):
        stair = np.sort(loc[..., 0], axis=0)[int(31 * level)]
        np.testing.assert_allclose(p.quantile(level), stair, atol=3e-4)
        np.testing.assert_allclose(p.cdf(p.quantile(level)), level, atol=1e-7)

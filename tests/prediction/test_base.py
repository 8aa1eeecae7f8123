"""Promises of every prediction of numbers: scores, probabilities, draws and covariances all follow from its cdf."""

import pickle
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from scipy import stats

from prediction.prediction_cases import KINDS, Known, N, student
from quick import ensemble_regressor, linear_table
from vmg.prediction import MixturePrediction, StudentPrediction, TransformedPrediction
from vmg.prediction.transformed import LogTransform, Rectified


@pytest.fixture(params=KINDS)
def prediction(request):
    return KINDS[request.param]()


def columns(prediction, values):
    """Results [N] or [N, C] as [N, C]."""
    return np.asarray(values).reshape(prediction.shape)


def test_draws_have_the_distribution_of_quantiles_and_intervals(prediction):
    n = 40_000
    drawn = prediction.sample(n, 0).reshape(n, *prediction.shape)
    for q in (0.03, 0.2, 0.5, 0.8, 0.97):
        value = prediction.quantile(q)
        below, p = (drawn <= columns(prediction, value)).mean(0), columns(prediction, prediction.cdf(value))
        assert (np.abs(below - p) < 5 * np.sqrt(p * (1 - p) / n) + 1e-9).all()
    low, high = np.moveaxis(prediction.interval(0.8), -1, 0)
    inside = ((drawn >= columns(prediction, low)) & (drawn <= columns(prediction, high))).mean(0)
    assert (inside > 0.8 - 5 * np.sqrt(0.16 / n)).all()


def test_names_of_scipy_and_of_sequences_are_the_same_numbers(prediction):
    y = prediction.quantile(0.3)
    np.testing.assert_array_equal(prediction.ppf([0.3, 0.8])[..., 0], y)
    np.testing.assert_array_equal(prediction.median, prediction.quantile(0.5))
    np.testing.assert_array_equal(prediction.logpdf(y), prediction.log_prob(y))
    np.testing.assert_allclose(np.log(prediction.pdf(y)), prediction.log_prob(y))
    np.testing.assert_allclose(prediction.var, prediction.std**2)
    np.testing.assert_array_equal(prediction.rvs(3, random_state=1), prediction.sample(3, 1))
    assert len(prediction) == prediction.n_rows
    some = prediction[np.arange(len(prediction)) > 0]
    np.testing.assert_allclose(some.mean, prediction.mean[1:], rtol=1e-12)
    assert len(prediction[-1]) == 1 and len(prediction[:2]) == 2


def cdf_of_row(prediction, row, output, *others):
    """Middles of many short steps between quantiles and other values, the steps' lengths, and the cdf there."""
    levels = np.array([1e-9, 1e-7, 1e-4, 0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99, 1 - 1e-4, 1 - 1e-7, 1 - 1e-9])
    knots = np.moveaxis(prediction.quantile(levels), -1, 0).reshape(-1, *prediction.shape)[:, row, output]
    grid = np.unique(np.concatenate([np.linspace(a, b, 500) for a, b in pairwise(np.unique([*knots, *others]))]))
    middle = 0.5 * (grid[:-1] + grid[1:])
    columns = np.repeat(middle[:, None], prediction.n_outputs, 1)
    below = prediction.take(np.full(len(middle), row)).cdf(columns).reshape(columns.shape)[:, output]
    return middle, np.diff(grid), below


def test_crps_is_the_integral_of_its_own_cdf(prediction):
    for q in (0.1, 0.6, 0.999):
        y = columns(prediction, prediction.quantile(q)) + 0.013
        score = columns(prediction, prediction.crps(y))
        for row, output in np.ndindex(prediction.shape):
            target = y[row, output]
            at, step, below = cdf_of_row(prediction, row, output, target, 0.0)
            np.testing.assert_allclose(score[row, output], step @ (below - (at >= target)) ** 2, rtol=3e-3)


def test_moments_are_integrals_of_the_cdf(prediction, request):
    """E (y − c) = ∫ (1{t > c} − cdf) dt and E (y − c)² = 2 ∫ |t − c| (...) dt, around the mean c.

    A mean that its heavy tail alone would make larger stays inside the 90 % interval, of a mixture the widest one.
    """
    widest = prediction.parts if isinstance(prediction, MixturePrediction) else prediction
    high = widest.interval(0.9)[..., 1].max()
    for row, output in np.ndindex(prediction.shape):
        mean, std = (columns(prediction, part)[row, output] for part in (prediction.mean, prediction.std))
        at, step, below = cdf_of_row(prediction, row, output, mean)
        beyond = np.where(at > mean, 1 - below, below)
        more = step @ (np.sign(at - mean) * beyond)
        if more > 3e-3 * std and "lognormal" in request.node.name:
            assert mean <= high
            continue
        assert abs(more) < 3e-3 * std
        np.testing.assert_allclose(2 * step @ (np.abs(at - mean) * beyond), std**2, rtol=1e-2)


@pytest.mark.parametrize("q", [0.003, 0.3, 0.5, 0.9, 0.99])
def test_quantiles_invert_the_cdf_and_densities_are_its_slope(prediction, q):
    y = prediction.quantile(q)
    upto, jump = prediction.cdf(y), prediction.cdf(y) - prediction.probability(below=y)
    assert (upto > q - 1e-9).all() and (upto - jump < q + 1e-9).all()
    if prediction.n_outputs > 1:
        return
    ends = prediction.interval_at(np.ones(1))
    step = 1e-4 * np.minimum(prediction.std, np.abs(y[:, None] - ends).min(1))
    with np.errstate(divide="ignore"):
        slope = np.log((prediction.cdf(y + step) - prediction.cdf(y - step)) / np.maximum(2 * step, 1e-300))
        expected = np.where(jump > 1e-9, np.log(jump), slope)
    np.testing.assert_allclose(prediction.log_prob(y), expected, atol=2e-4)


def test_every_log_density_is_finite(prediction):
    for y in (0.0, -1e-300, 1e-300, 0.25, -7.0, 1e9 + 0.5, -1e150, 1e150):
        score = prediction.log_prob(np.full(prediction.shape, y))
        assert np.isfinite(score).all(), y


def test_intervals_of_several_coverages_and_of_everything(prediction):
    several = prediction.interval([0.5, 0.9])
    for k, coverage in enumerate((0.5, 0.9)):
        np.testing.assert_allclose(several[..., k], prediction.interval(coverage), rtol=1e-12)
        ends = prediction.quantile([(1 - coverage) / 2, (1 + coverage) / 2])
        np.testing.assert_allclose(prediction.interval(coverage), ends, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(prediction.interval_at(np.asarray(0.0))[..., 0], prediction.median, rtol=1e-8, atol=1e-9)
    everything = prediction.interval_at(np.ones(prediction.n_outputs))
    assert np.isinf(everything[..., 0]).all() or (everything[..., 0] <= prediction.quantile(1e-9)).all()
    assert (everything[..., 1] >= prediction.quantile(1 - 1e-9)).all()


def test_wrong_questions(prediction):
    for ask, message, values in (
        (prediction.quantile, r"q must be inside \(0, 1\)", (0.0, 1.0, -0.5, np.nan, [0.5, 1.0])),
        (prediction.interval, r"coverage must be inside \(0, 1\)", (0.0, 1.0, 1.5, np.nan, [0.5, 1.0])),
        (prediction.interval_at, "coverage must be from 0 to 1", (-0.1, 1.1, np.nan)),
        (prediction.cdf, "y must have 3 rows and", (0.0, np.zeros(2), np.zeros((3, 3)), np.zeros((2, 3)))),
        (prediction.log_prob, r"y must have 3 rows and . outputs; got shape \(2,\)", ([1.0, 2.0],)),
        (prediction.probability, "probability needs above, below or both", (None,)),
    ):
        for value in values:
            with pytest.raises(ValueError, match=message):
                ask(value)


def test_probabilities_are_those_of_the_cdf(prediction):
    y = prediction.quantile(0.6)
    np.testing.assert_allclose(prediction.probability(above=y), 1 - prediction.cdf(y), atol=1e-12)
    drawn, n = prediction.sample(20_000, 1), 20_000
    low, high = prediction.quantile(0.2), prediction.quantile(0.7)
    for asked, hits in (
        ({"below": high}, drawn < high),
        ({"above": low}, drawn > low),
        ({"above": low, "below": high}, (drawn > low) & (drawn < high)),
        ({"below": 0.0}, drawn < 0),
        ({"above": 1.0, "below": 2.0}, (drawn > 1) & (drawn < 2)),
        ({"above": 2.0, "below": 1.0}, drawn > np.inf),
        ({"above": -np.inf}, drawn > -np.inf),
        ({"below": np.inf}, drawn < np.inf),
    ):
        p = prediction.probability(**asked)
        assert p.shape == prediction.mean.shape
        assert (np.abs(hits.mean(0) - p) < 5 * np.sqrt(p * (1 - p) / n) + 1e-9).all()


def test_moments_are_those_of_draws(prediction):
    drawn = prediction.sample(40_000, 2)
    error = drawn.std(0) / 200
    assert (np.abs(drawn.mean(0) - prediction.mean) < 6 * error).all()
    assert (prediction.aleatoric_std > 0).all() and (prediction.epistemic_std > 0).all()
    np.testing.assert_allclose(prediction.std**2, prediction.aleatoric_std**2 + prediction.epistemic_std**2, rtol=1e-9)


def test_covariances_are_those_of_draws(prediction):
    """Nearly: for a nonlinear function of what is Gaussian they are approximations."""
    n = 40_000
    drawn, std = prediction.sample(n, 3).reshape(n, *prediction.shape), columns(prediction, prediction.std)
    away = (drawn - drawn.mean(0)) / std
    rows = prediction.row_covariance().reshape(N, N, -1) / (std[:, None] * std)
    outputs = prediction.covariance() / (std[:, :, None] * std[:, None])
    between_rows = np.abs(np.einsum("snc,smc->nmc", away, away) / n - rows)
    between_outputs = np.abs(np.einsum("snc,snd->ncd", away, away) / n - outputs)
    assert (between_rows[~np.eye(N, dtype=bool)] < 0.1).all()
    assert (between_outputs[:, ~np.eye(prediction.n_outputs, dtype=bool)] < 0.1).all()


def test_some_rows_and_copies_are_the_same_prediction(prediction):
    rows = np.array([2, 0])
    y = columns(prediction, prediction.quantile(0.4))
    copy, some = pickle.loads(pickle.dumps(prediction)), prediction.take(rows)
    assert np.array_equal(copy.sample(3, 0), prediction.sample(3, 0))
    for name in ("mean", "std", "aleatoric_std", "epistemic_std"):
        np.testing.assert_allclose(getattr(some, name), getattr(prediction, name)[rows], rtol=1e-12)
    np.testing.assert_allclose(some.crps(y[rows]), prediction.crps(y)[rows], rtol=1e-3)
    np.testing.assert_allclose(some.interval(0.7), prediction.interval(0.7)[rows], rtol=1e-9)
    assert repr(prediction) == f"{type(prediction).__name__}(n_rows=3, n_outputs={prediction.n_outputs})"
    between = prediction.row_covariance().reshape(N, N, -1)
    np.testing.assert_allclose(np.einsum("nnc->nc", between), columns(prediction, prediction.std) ** 2)
    np.testing.assert_allclose(some.row_covariance().reshape(2, 2, -1), between[np.ix_(rows, rows)], rtol=1e-9)


def test_levels_of_many_rows_and_outputs(prediction):
    levels = np.random.default_rng(0).uniform(0.2, 0.95, prediction.shape)
    together = prediction.interval_at(levels).reshape(*prediction.shape, 2)
    for row, output in np.ndindex(prediction.shape):
        alone = prediction.interval(levels[row, output]).reshape(*prediction.shape, 2)[row, output]
        np.testing.assert_allclose(together[row, output], alone, rtol=1e-9)


# -- kinds ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("c", [1, 3])
def test_a_student_prediction_is_that_of_scipy(c):
    p = student(c)
    t, y = stats.t(p.df, p.loc, p.scale), 3 * np.random.default_rng(1).normal(size=p.shape)
    np.testing.assert_allclose(p.log_prob(y), t.logpdf(y).sum(-1), rtol=1e-10)
    np.testing.assert_allclose(columns(p, p.cdf(y)), t.cdf(y), rtol=1e-10)
    np.testing.assert_allclose(columns(p, p.quantile(0.3)), t.ppf(0.3), rtol=1e-9)
    for coverage in (0.5, 0.9, 1 - 1e-12):
        tail = (1 - coverage) / 2
        ends = np.stack([t.ppf(tail), t.isf(tail)], -1)
        np.testing.assert_allclose(p.interval(coverage).reshape(ends.shape), ends, rtol=1e-6)


def test_the_factor_is_asked_for_only_where_it_is_needed():
    p = replace(student(), factor=lambda: pytest.fail("the factor was asked for"))
    assert len([p.mean, p.std, p.interval(), p.log_prob(p.loc), p.crps(p.loc), p.quantile(0.5)]) == 6


# -- models -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("likelihood", ["student", "lognormal", "poisson"])
def test_predictions_of_models_pickle(likelihood):
    X, y = linear_table(40)
    y = np.round(np.exp(y / 4)) + 1 if likelihood == "poisson" else np.exp(y / 4)
    prediction = ensemble_regressor(likelihood=likelihood).fit(X, y).pred_dist(X[:5])
    copy = pickle.loads(pickle.dumps(prediction))
    assert np.array_equal(copy.row_covariance(), prediction.row_covariance())
    assert np.array_equal(copy.sample(4, 0), prediction.sample(4, 0))


def test_outputs_go_together_as_members_disagree():
    """Output weights of a member are independent over outputs; members' disagreement is of all outputs at once."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 2))
    Y = np.stack([np.sin(2 * X[:, 0]), -np.sin(2 * X[:, 0])], 1) + 0.1 * rng.normal(size=(40, 2))
    model = ensemble_regressor(max_iter=40).fit(X, Y)
    rows = 3 * rng.normal(size=(4, 2))
    prediction, ensemble = model.pred_dist(rows), model.ensemble_
    features, unit = ensemble.members.features, model.target_scaling_.scale
    factor = ensemble.function_factor(model.input_scaling_.transform(rows))
    between = factor[: features.n_members] * unit * prediction.tails
    expected = np.einsum("knc,knd->ncd", between, between)
    stated = prediction.covariance()
    np.testing.assert_allclose(stated[:, 0, 1], expected[:, 0, 1], rtol=1e-9)
    drawn = prediction.sample_functions(100_000, 0)
    for row in range(len(rows)):
        found = np.cov(drawn[:, row].T)[0, 1]
        error = 5 * drawn[:, row].std(0).prod() / np.sqrt(100_000)
        assert abs(found - stated[row, 0, 1]) < error


def test_means_of_heavy_tails_are_inside_their_intervals():
    """In logarithms the noise is so heavy that the mean would be far above 90 % of the targets."""
    rng = np.random.default_rng(0)
    loc, noise = rng.normal(size=(200, 1)), rng.uniform(1, 4, (200, 1))
    base = StudentPrediction(loc, noise, 0.1 * noise, np.full(1, 3.0), Known(0.1 * noise.T[..., None]))
    prediction = TransformedPrediction(base, LogTransform(1e5))
    low, high = prediction.interval(0.9).T
    assert (low < prediction.mean).all() and (prediction.mean < high).all() and (prediction.mean > 0.99 * high).any()


@pytest.mark.parametrize("transform", [LogTransform(10.0), Rectified()], ids=["log", "rectified"])
@pytest.mark.parametrize("df", [3.0, 8.0, 100.0])
def test_noise_of_amounts_does_not_vanish_far_from_the_data(transform, df):
    """A hundredth of noise beside any ignorance: small, and never exactly zero."""
    loc, function = (part.reshape(-1, 1) for part in np.meshgrid([-10.0, 0.0, 3.0, 10.0], [0.1, 1.0, 10.0, 50.0]))
    base = StudentPrediction(loc, np.full(loc.shape, 0.01), function, np.full(1, df), Known(function[None]))
    prediction = TransformedPrediction(base, transform)
    assert (prediction.aleatoric_std > 1e-6 * prediction.std).all()
    vague = function[:, 0] > 5
    assert (prediction.aleatoric_std[vague] < 0.1 * prediction.std[vague]).all()

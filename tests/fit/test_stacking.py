"""Stacking: weights against a search over a grid, and the mixture's moments."""

from dataclasses import replace

import numpy as np
import pytest
from fit_rows import fit_rows

from vmg import TableRegressor
from vmg.fit import gaussian_process
from vmg.fit.calibration import HeldOutFunctions
from vmg.fit.ensemble import Mixture
from vmg.fit.gaussian import MOST_VARIANCE
from vmg.fit.gaussian_process import GaussianProcess, Kernel
from vmg.fit.stacking import EXPERTS, LEAN, LEAST_UNSURE, Stack, mix, mix_held_out, stacking_loss, weigh

NAMES = ["networks", "gaussian_process", "boosted_trees"]


def held_out(y, loc, variance=0.1, excess=0.0):
    n = len(y)
    return HeldOutFunctions(np.arange(n), loc, np.full(n, variance), np.full(n, excess), y, np.ones(n))


@pytest.fixture
def experts():
    rng = np.random.default_rng(0)
    y = rng.standard_normal(400)
    noise = [rng.standard_normal(400) * size for size in (0.5, 0.6, 2.0)]
    return [held_out(y, y + one) for one in noise]


def test_weights_are_those_of_a_search_over_a_grid(experts):
    weight = weigh(experts, NAMES)
    loss = stacking_loss(experts, np.array([LEAN.get(name, 0.0) for name in NAMES]))
    grid = np.linspace(0.005, 0.995, 100)
    points = [np.array([a, b, 1 - a - b]) for a in grid for b in grid if a + b < 0.999]
    best = min(points, key=lambda point: loss(np.log(point)))
    assert weight.sum() == pytest.approx(1.0)
    np.testing.assert_allclose(weight, best, atol=0.02)
    assert weight[2] < 0.06


def test_an_expert_without_weight_gets_none(experts):
    useless = experts[2]._replace(loc=experts[2].loc + 50.0)
    assert weigh([experts[0], useless], NAMES[:2]).tolist() == [1.0, 0.0]


def test_trees_never_stand_alone(experts):
    perfect = experts[0]._replace(loc=experts[0].y)
    weight = weigh([experts[2], perfect], [NAMES[0], NAMES[2]])
    np.testing.assert_allclose(weight, [LEAST_UNSURE, 1 - LEAST_UNSURE])


def test_few_members_are_not_blamed_for_being_few(experts):
    alone = weigh(experts[:2], NAMES[:2])
    with_excess = weigh([experts[0]._replace(excess=np.full(400, 0.1)), experts[1]], NAMES[:2])
    assert with_excess[0] > alone[0] + 0.05


def test_the_mixture_has_the_moments_of_its_draws():
    rng = np.random.default_rng(1)
    loc, variance, weight = rng.standard_normal((5, 3)), rng.uniform(0.1, 1.0, (5, 3)), np.array([0.5, 0.3, 0.2])
    centre, total = mix(loc, variance, weight)
    which = rng.choice(3, 400_000, p=weight)
    draws = loc[:, which] + np.sqrt(variance[:, which]) * rng.standard_normal(400_000)
    np.testing.assert_allclose(centre, draws.mean(1), atol=0.01)
    np.testing.assert_allclose(total, draws.var(1), rtol=0.02)


def test_held_out_rows_mix_as_others_do(experts):
    weight = np.array([0.6, 0.4])
    mixed = mix_held_out(experts[:2], weight)
    loc = np.stack([one.loc for one in experts[:2]], 1)
    expected = mix(loc, np.full(loc.shape, 0.1), weight)
    np.testing.assert_array_equal(mixed.loc, expected.loc)
    np.testing.assert_array_equal(mixed.variance, expected.variance)
    assert mixed.y is experts[0].y


def test_few_rows_leave_weights_near_their_prior(experts):
    few = np.arange(400) < 10
    worse = [HeldOutFunctions(*(part[few] for part in one)) for one in (experts[1], experts[0])]
    assert weigh(worse, NAMES[:2])[0] > weigh([experts[1], experts[0]], NAMES[:2])[0] + 0.05


@pytest.mark.parametrize("kind", EXPERTS.values(), ids=list(EXPERTS))
def test_held_out_predictions_have_not_seen_their_rows(kind, monkeypatch):
    search, log = gaussian_process._search, np.array([0.3, -0.1, 0.5, 0.2, -0.4, 0.1, -1.0])
    monkeypatch.setattr(gaussian_process, "_search", lambda *rows: log if rows[-2] is None else search(*rows))
    rng = np.random.default_rng(0)
    x, index = rng.standard_normal((200, 3)), np.arange(200)
    y, held_out = np.sin(x[:, 0]), np.stack([index % 4 == k for k in range(2)])
    said, again = (
        kind.fit(fit_rows(x, targets, held_out), index)[1] for targets in (y, np.where(held_out[0], y + 100.0, y))
    )
    np.testing.assert_array_equal(said[0], again[0])
    assert np.abs(said[1].loc - again[1].loc).max() > 1.0


def test_where_the_process_is_unsure_the_mixture_is_too():
    x, kernel = np.linspace(-1, 1, 30)[:, None], Kernel(np.log([0.3, 1.0, 0.1, 0.1, 0.1]))
    process = GaussianProcess.of(kernel, x, x, np.sin(3 * x[:, 0]), None)
    stack = Stack((process,), np.array([0.9, 0.1]), known=0.2)
    new, factor = np.array([[0.0], [4.0]]), np.array([1.0, 3.0])
    mixed = stack.mix(new, Mixture(np.zeros((2, 1)), np.full((2, 1), 1e-3)), factor)
    own = process.predict(new).variance * factor
    assert own[0] < 0.2 < 2 * mixed.variance[1, 0] < own[1]
    np.testing.assert_allclose(mixed.least[:, 0], [0.0, own[1]])


@pytest.fixture(scope="module")
def around_a_gap():
    """A fitted ensemble, the process in it, and rows between those of the fit."""
    rng = np.random.default_rng(1)
    x = rng.uniform(1, 2, (100, 1)) * rng.choice([-1, 1], (100, 1))
    y = np.sin(4 * x[:, 0]) + 0.5 * x[:, 0] + 0.1 * rng.standard_normal(100)
    model = TableRegressor(likelihood="student", random_state=1, max_iter=40).fit(x, y)
    ensemble, gap = model.ensemble_, model.input_scaling_.transform(np.linspace(-0.4, 0.4, 9)[:, None])
    [process] = [one for one in ensemble.stack.experts if isinstance(one, GaussianProcess)]
    return ensemble, process, gap


def function_variance(ensemble, rows):
    """Variance of the function at rows; draws of functions have the same."""
    variance = ensemble.predict(rows).function_scale[:, 0] ** 2
    np.testing.assert_allclose(np.square(ensemble.function_factor(rows)[..., 0]).sum(0), variance, rtol=2e-3)
    return variance


def test_a_gap_is_as_unknown_as_the_process_says_where_networks_are_surer(around_a_gap):
    ensemble, process, gap = around_a_gap
    asked, said = process.predict(gap).variance, function_variance(ensemble, gap)
    without = replace(ensemble, stack=replace(ensemble.stack, known=np.inf)).predict(gap).function_scale[:, 0] ** 2
    assert (asked > ensemble.stack.known).all() and (without < asked).any()
    np.testing.assert_allclose(said, np.maximum(without, asked))


def test_no_function_is_less_known_than_twice_the_spread_of_the_targets(around_a_gap):
    ensemble, _, gap = around_a_gap
    far = np.array([[-9.0], [9.0]])
    wild = GaussianProcess.of(Kernel(np.log([0.1, 30.0, 0.1, 0.1, 0.1])), far, far, np.zeros(2), None)
    unsure = replace(ensemble, stack=Stack((wild,), np.array([0.1, 0.9]), known=0.0))
    assert wild.predict(gap).variance.min() > 100
    np.testing.assert_allclose(function_variance(unsure, gap), MOST_VARIANCE)
    outside = np.array([[ensemble.input_range.high[0] + 1.0]])
    assert function_variance(unsure, outside) >= 2 * MOST_VARIANCE  # farther out less is known


def test_a_centre_beyond_all_targets_is_as_unknown_as_it_is_far_from_them(around_a_gap):
    ensemble, _, gap = around_a_gap
    before, loc = function_variance(ensemble, gap), ensemble.predict(gap).loc[:, 0]
    assert ensemble.reach > 1.5 > np.abs(loc).max() > 0.05
    near = replace(ensemble, reach=0.03)
    np.testing.assert_allclose(function_variance(near, gap), before + np.maximum(np.abs(loc) - 0.03, 0) ** 2)
    assert near.updated(gap[:1], np.array([[0.7]]), None).reach == 0.7

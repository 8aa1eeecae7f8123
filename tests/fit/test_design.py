"""Units of the rows, and which rows members never see: folds, regions, and how both are dealt out."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from vmg import TableRegressor
from vmg.fit.design import (
    FOLDS,
    MIN_ROWS,
    REGION_SHARE,
    Design,
    Standardiser,
    _stretch,
    find_repeats,
    random_folds,
    regions,
)


def rng():
    return np.random.default_rng(0)


@pytest.mark.parametrize(("n_rows", "n_folds"), [(10, 4), (11, 4), (100, 8), (5, 5)])
def test_folds_partition_the_rows(n_rows, n_folds):
    folds = random_folds(n_rows, n_folds, rng())
    assert folds.shape == (n_folds, n_rows) and folds.dtype == bool
    assert (folds.sum(0) == 1).all()
    assert folds.sum(1).max() - folds.sum(1).min() <= 1


@pytest.mark.parametrize("n_inputs", [1, 2, 7, 50])
@pytest.mark.parametrize("share", [0.1, 0.25, 0.5])
@pytest.mark.parametrize("spread", [1.0, 0.0], ids=["rows", "equal rows"])
def test_regions_hold_the_share_that_was_asked_for(n_inputs, share, spread):
    x = spread * rng().normal(size=(400, n_inputs))
    found = regions(x, 6, share, rng())
    assert found.shape == (6, 400)
    assert np.abs(found.mean(1) - share).max() <= 1.01 / 400


def test_a_region_of_one_input_is_an_interval():
    x = rng().normal(size=(200, 1))
    for k, inside in enumerate(regions(x, 6, 0.25, rng())):
        low, high = x[inside, 0].min(), x[inside, 0].max()
        assert not ((x[~inside, 0] > low + 1e-3) & (x[~inside, 0] < high - 1e-3)).any()
        if k % 2 == 0:  # one of the two ends
            assert low == x.min() or high == x.max()


# -- the design -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_members", [1, 2, 3, 4, 5, 8, 12, 13])
def test_every_member_is_in_one_group(n_members):
    design = Design.choose(rng().normal(size=(60, 3)), n_members, rng())
    members = np.concatenate([group.members for group in design.groups])
    assert sorted(members.tolist()) == list(range(n_members))
    assert design.held_out.shape == (n_members, 60)
    for group in design.groups:
        assert (design.held_out[group.members] == group.held_out).all()
        share = group.held_out.mean()
        assert share <= 1 / FOLDS + 1 / 60 if not group.region else abs(share - REGION_SHARE) < 2 / 60
    assert set(design.stopping_members) == {
        int(e) for group in design.groups if not group.region for e in group.members
    }
    assert design.stopping_members


def test_every_row_is_held_out_by_a_fold_where_members_are_enough():
    design = Design.choose(rng().normal(size=(60, 3)), 12, rng())
    folds = [group for group in design.groups if not group.region]
    assert (sum(group.held_out.astype(int) for group in folds) == 1).all()
    assert len(design.groups) - len(folds) == 2
    assert all(len(group.members) == 2 for group in design.groups)


@pytest.mark.parametrize("copies", [1, 30])
def test_few_different_rows_are_not_held_out(copies):
    x, y = table(MIN_ROWS - 1)
    design = Design.choose(np.repeat(x, copies, axis=0), 4, rng(), np.repeat(y, copies))
    assert not design.groups and not design.held_out.any() and design.stopping_members == []


# -- units ------------------------------------------------------------------------------------------------------------


def values(n=20, d=3, seed=0):
    return np.random.default_rng(seed).normal([1.0, -20.0, 300.0][:d], [0.1, 5.0, 1000.0][:d], size=(n, d))


def test_columns_get_mean_zero_and_standard_deviation_one():
    X = values()
    scaling = Standardiser.fit(X)
    np.testing.assert_allclose(scaling.mean, X.mean(0))
    np.testing.assert_allclose(scaling.scale, X.std(0))
    standard = scaling.transform(X)
    np.testing.assert_allclose(standard.mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(standard.std(0), 1)


def test_weights_count_rows():
    X, counts = values(), np.arange(20) % 4
    weighted, repeated = Standardiser.fit(X, counts.astype(float)), Standardiser.fit(X.repeat(counts, 0))
    np.testing.assert_allclose(weighted.mean, repeated.mean)
    np.testing.assert_allclose(weighted.scale, repeated.scale)
    tenth = Standardiser.fit(X, 0.1 * counts)
    np.testing.assert_allclose(tenth.scale, weighted.scale)


@pytest.mark.parametrize("constant", [0.0, 1.0, 0.1, -3.7e9, 1e-30, 1e300])
def test_a_constant_column_gets_scale_one(constant):
    X = np.stack([np.full(7, constant), np.arange(7.0)], 1)
    scaling = Standardiser.fit(X)
    assert scaling.scale[0] == 1
    assert scaling.scale[1] == 2
    assert abs(scaling.transform(X)[:, 0]).max() <= 1e-9 * abs(constant)


def test_rounding_is_no_variation():
    X = 0.1 * np.arange(1, 8)[:, None] / np.arange(1, 8)[:, None]
    X = np.concatenate([X, X + 1e-12 * np.arange(7)[:, None]], 1)
    np.testing.assert_array_equal(Standardiser.fit(X).scale[0], 1)
    wide = np.array([[1e6], [1e6 + 1]])
    np.testing.assert_allclose(Standardiser.fit(wide).scale, 0.5)


@pytest.mark.parametrize("unit", [1e-250, 1e-6, 1e6, 1e250])
def test_units_do_not_matter(unit):
    X = values()
    moved = Standardiser.fit(unit * X)
    np.testing.assert_allclose(moved.scale, unit * X.std(0))
    np.testing.assert_allclose(moved.transform(unit * X), Standardiser.fit(X).transform(X), atol=1e-9)


@settings(deadline=None)
@given(hnp.arrays(np.float64, (5, 2), elements=st.floats(-1e12, 1e12)))
def test_inverse_undoes_transform(X):
    scaling = Standardiser.fit(X)
    standard = scaling.transform(X)
    assert np.isfinite(standard).all()
    assert abs(standard).max() <= max(5.0, 1e-9 * abs(X).max()), "n rows are at most √(n − 1) deviations away"
    np.testing.assert_allclose(scaling.inverse(standard), X, rtol=1e-9, atol=1e-9 * abs(X).max())


# -- copies of rows ---------------------------------------------------------------------------------------------------


def table(n, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 3))
    return x, np.sin(2 * x[:, 0]) + x[:, 1] + 0.3 * rng.normal(size=n)


@pytest.mark.parametrize("jitter", [0.0, 1e-6])
def test_copies_are_found_in_any_order(jitter):
    x, y = table(100)
    order = rng().permutation(300)
    copies, targets = np.tile(x, (3, 1))[order], np.tile(y, 3)[order]
    noise = jitter * rng().normal(size=(300, 3))
    label = find_repeats(copies + noise, targets)
    assert len(np.unique(label)) == 100
    assert len(np.unique(np.stack([label, order % 100]), axis=1).T) == 100


def test_rows_that_are_equal_by_nature_are_no_copies():
    x, y = table(500)
    assert len(np.unique(find_repeats(x, y))) == 500
    categories = (x > 0).astype(float)
    assert len(np.unique(find_repeats(categories, y > 0))) == 500  # few values: equal rows are to be expected
    assert len(np.unique(find_repeats(categories, y))) > 490  # another target each
    line = np.linspace(0, 1, 5_000)[:, None]
    assert len(np.unique(find_repeats(line, line[:, 0]))) == 5_000  # dense, but no two are equal


def test_infinite_bounds_and_constant_columns_are_compared():
    bounds = np.array([[0.0, np.inf], [0.0, np.inf], [1.0, 2.0], [-np.inf, 0.5]])
    x = np.array([[1.5, 7.0], [1.5, 7.0], [2.5, 7.0], [3.5, 7.0]])
    assert find_repeats(x, bounds).tolist()[0] == find_repeats(x, bounds).tolist()[1]
    assert len(np.unique(find_repeats(x, bounds))) == 3


def test_copies_are_held_out_together_and_counted_once():
    x, y = table(50)
    design = Design.choose(np.repeat(x, 4, axis=0), 12, rng(), np.repeat(y, 4))
    assert design.first.sum() == 50 and design.first[::4].all()
    for group in design.groups:
        assert (group.held_out.reshape(50, 4) == group.held_out[::4, None]).all()
    [note] = design.notes
    assert note.startswith("150 of 200 rows repeat others, exactly or nearly: they are held out together")
    assert Design.choose(x, 12, rng(), y).notes == ()


@pytest.mark.parametrize("n_rows", [10, 15, 40])
def test_more_members_than_rows_leave_no_fold_empty(n_rows):
    design = Design.choose(table(n_rows)[0], 100, rng())
    assert all(group.held_out.any() and not group.held_out.all() for group in design.groups)


@pytest.mark.parametrize(("n", "copies", "worst"), [(100, 2, 0.3), (15, 20, 1.2)])
def test_copies_do_not_make_a_model_overconfident(n, copies, worst):
    """The score of new rows is near that of a fit to each row once, and the interval covers."""
    x, y = table(n)
    new, truth = table(500, seed=1)
    scores = []
    for times in (1, copies):
        model = TableRegressor(random_state=0, likelihood="student").fit(np.tile(x, (times, 1)), np.tile(y, times))
        low, high = model.predict_interval(new).T
        scores.append(model.pred_dist(new).log_prob(truth).mean())
    assert scores[1] > scores[0] - worst
    assert 0.8 < np.mean((low <= truth) & (truth <= high)) <= 1
    assert model.history_.notes[0].startswith(f"{n * (copies - 1)} of {n * copies} rows repeat others")


@pytest.mark.parametrize("n_inputs", [1, 5])
def test_outside_the_range_a_straight_line_stays_inside_its_intervals(n_inputs):
    random, slope = rng(), np.linspace(1, 2, n_inputs)
    X, far = random.normal(size=(100, n_inputs)), 10 * random.normal(size=(200, n_inputs))
    model = TableRegressor(n_members=4, max_iter=60, random_state=0).fit(X, X @ slope + 0.1 * random.normal(size=100))
    low, high = model.predict_interval(far, 0.9).T
    assert ((low <= far @ slope) & (far @ slope <= high)).mean() > 0.85


def test_functions_outside_the_range_drift_by_the_slopes_inside():
    random = rng()
    X = random.uniform(-1, 1, size=(80, 2))
    y = np.stack([X[:, 0], 3 * X[:, 1]], 1) + 0.05 * random.normal(size=(80, 2))
    ensemble = TableRegressor(n_members=4, max_iter=60, random_state=0).fit(X, y).ensemble_
    far = np.array([[4.0, 0.0], [8.0, 0.0], [0.0, -8.0]])
    beyond = np.maximum(np.abs(far) - _stretch(ensemble.input_range.high), 0)
    drift = np.square(ensemble.function_factor(far)[-2:]).sum(0)  # [N, C]
    for row, column in ((0, 0), (1, 0), (2, 1)):  # along its input an output moves by its spread, a standard deviation
        assert drift[row, column] == pytest.approx(beyond[row, column] ** 2, rel=0.7)
        assert drift[row, 1 - column] < 0.1 * drift[row, column]
    assert drift[1, 0] / drift[0, 0] == pytest.approx((beyond[1, 0] / beyond[0, 0]) ** 2)
    stated = ensemble.predict(far).function_scale
    np.testing.assert_allclose(np.square(ensemble.function_factor(far)).sum(0), stated**2, rtol=1e-6)
    assert not ensemble.function_factor(0.1 * far)[-2:].any()

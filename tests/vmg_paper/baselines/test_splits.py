import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from methods import bounds, every_method
from sklearn.base import clone
from sklearn.metrics import r2_score
from sklearn.model_selection import KFold, ShuffleSplit

import vmg
from quick import class_table, classifier, ensemble_regressor, linear_table, regressor
from vmg.fit.design import Standardiser
from vmg.variational.fitter import CANDIDATES
from vmg_paper.baselines.splits import fit_splits

LINEAR = {"hidden_layer_sizes": (), "n_pseudo": 0, "max_iter": 100}


def numbers(model, X):
    return np.concatenate([model.predict_interval(X).ravel(), model.sample(X, 2).ravel()])


@every_method
def test_one_split_of_a_baseline_is_one_fit_and_fits_repeat(model):
    X, y = linear_table(40)
    [fitted] = fit_splits(model, X, y, [(np.arange(30), np.arange(30, 40))])
    alone = clone(model).fit(X[:30], y[:30])
    np.testing.assert_array_equal(bounds(fitted, X), bounds(alone, X))
    np.testing.assert_allclose(bounds(alone, X)[3:5], bounds(alone, X[3:5]), rtol=1e-9)


@every_method
def test_a_baseline_never_uses_test_rows(model):
    """Folds of unequal length; rates, precisions and the step to stop at are chosen inside the training rows."""
    X, y = linear_table(49)
    splits = [list(KFold(4).split(X))[k] for k in (0, 3)]
    before = fit_splits(model, X, y, splits)
    test = splits[1][1]
    X[test], y[test] = 1e3, y[0]
    after = fit_splits(model, X, y, splits)
    np.testing.assert_array_equal(bounds(after[1], X), bounds(before[1], X))
    assert (bounds(after[0], X) != bounds(before[0], X)).any()
    assert "input_scaling_" not in vars(model), "the given estimator stays as it is"


def test_other_estimators_are_fitted_one_after_another():
    X, y = linear_table(30)
    model = ensemble_regressor(max_iter=2)
    fitted = fit_splits(model, X, y, [(np.arange(20), []), (np.arange(10, 30), [])])
    np.testing.assert_array_equal(numbers(fitted[1], X), numbers(clone(model).fit(X[10:], y[10:]), X))


@pytest.mark.parametrize("n_outputs", [None, 2])
@pytest.mark.parametrize("train", [np.arange(20), list(range(20)), np.arange(30) < 20], ids=["array", "list", "mask"])
def test_one_split_is_one_fit(train, n_outputs):
    X, y = linear_table(30, n_outputs=n_outputs)
    [fitted] = fit_splits(regressor(max_iter=5), X, y, [(train, None)])
    np.testing.assert_array_equal(numbers(fitted, X), numbers(regressor(max_iter=5).fit(X[:20], y[:20]), X))


def test_as_good_as_separate_fits():
    X, y = linear_table(90)
    splits = list(KFold(3, shuffle=True, random_state=0).split(X))
    model = regressor(**{**LINEAR, "max_iter": 300})
    together = fit_splits(model, X, y, splits)
    for fitted, (train, test) in zip(together, splits, strict=True):
        alone = clone(model).fit(X[train], y[train])
        scores = [r2_score(y[test], m.predict(X[test])) for m in (fitted, alone)]
        densities = [m.pred_dist(X[test]).log_prob(y[test]).mean() for m in (fitted, alone)]
        assert scores[0] > max(0.8, scores[1] - 0.05)
        assert densities[0] > densities[1] - 0.1
        assert fitted.n_iter_ == alone.n_iter_


def test_each_split_has_units_of_its_own():
    """Two halves of a table in very different units, and unequally long."""
    X, y = linear_table(50)
    unit, shift = np.where(np.arange(50) < 20, 1.0, 1e3), np.where(np.arange(50) < 20, 0.0, -1e4)
    X, y = X * unit[:, None] + shift[:, None], y * unit + shift
    halves = [np.arange(20), np.arange(20, 50)]
    fitted = fit_splits(regressor(**LINEAR), X, y, [(rows, []) for rows in halves])
    for model, rows in zip(fitted, halves, strict=True):
        for scaling, values in ((model.input_scaling_, X[rows]), (model.target_scaling_, y[rows, None])):
            expected = Standardiser.fit(values)
            np.testing.assert_array_equal(scaling.mean, expected.mean)
            np.testing.assert_array_equal(scaling.scale, expected.scale)
        assert model.score(X[rows], y[rows]) > 0.85


EARLY = {"early_stopping": True, "max_iter": 30, "n_iter_no_change": 2, "tol": 0.0, "validation_fraction": 0.3}


@pytest.mark.parametrize("options", [{}, {"n_members": 2, **EARLY}, {"noise": "input"}], ids=str)
def test_test_rows_are_never_used(options):
    """Whatever stands in a split's test rows, its estimator has the same bits; folds of unequal length."""
    X, y = linear_table(25)
    splits = list(KFold(4).split(X))
    assert len({len(train) for train, _ in splits}) == 2
    model = regressor(**{"max_iter": 5, **options})
    before = fit_splits(model, X, y, splits)
    for k in (0, 3):
        test = splits[k][1]
        X_other, y_other = X.copy(), y.copy()
        X_other[test], y_other[test] = 1e3, -1e6
        after = fit_splits(model, X_other, y_other, splits)
        same = [np.array_equal(numbers(a, X), numbers(b, X)) for a, b in zip(after, before, strict=True)]
        assert same == [j == k for j in range(4)], "the others do train on it"


def test_each_split_stops_early_by_itself():
    """With as many steps for all, a split keeps its best parameters, whenever the others have theirs."""
    X, y = linear_table(60)
    y[30:] = np.random.default_rng(0).normal(size=30)  # the second half cannot be learned
    halves = [(np.arange(30), []), (np.arange(30, 60), [])]
    model = regressor(**{**EARLY, "n_iter_no_change": 10, "max_iter": 60}, noise="input")
    both = fit_splits(model, X, y, halves)
    steps = {one.likelihood_.n_updates.item() for one in both}
    assert len(steps) == 2
    assert max(steps) <= both[0].history_.last.step
    assert both[0].history_.last.step == both[1].history_.last.step


def test_the_noise_bound_is_chosen_from_training_rows():
    X, y = linear_table(60)
    splits = [(np.arange(25), np.arange(25, 60)), (np.arange(25, 60), np.arange(25))]
    model = regressor(max_noise="auto", max_iter=8)
    before = fit_splits(model, X, y, splits)
    alone = fit_splits(model, X, y, splits[:1])
    X[25:], y[25:] = 1e3 * X[25:] ** 2, np.random.default_rng(0).normal(size=35)
    after = fit_splits(model, X, y, splits)
    assert before[0].max_noise_ == after[0].max_noise_
    assert {one.max_noise_ for one in (*before, *after, *alone)} <= set(CANDIDATES)
    assert all(one.network_.layers[0].pseudo_data.max_noise == one.max_noise_ for one in before)


def test_a_split_of_few_rows_takes_no_choice_from_the_others():
    X, y = linear_table(70)
    long, short = (np.arange(60), []), (np.arange(60, 70), [])
    model = regressor(max_noise="auto", max_iter=8)
    [alone] = fit_splits(model, X, y, [long])
    beside = fit_splits(model, X, y, [short, long])
    assert alone.max_noise_ != CANDIDATES[-1]
    assert [one.max_noise_ for one in beside] == [CANDIDATES[-1], alone.max_noise_]


@pytest.mark.parametrize("n_members", [1, 3])
def test_members(n_members):
    X, y = linear_table(20)
    splits = list(KFold(2).split(X))
    fitted = fit_splits(regressor(max_iter=5, n_members=n_members, max_noise=0.4), X, y, splits)
    assert {(one.max_noise_, one.network_.layers[0].pseudo_data.max_noise) for one in fitted} == {(0.4, 0.4)}
    weights = [model.network_.layers[0].loc for model in fitted]
    assert all(w.shape[0] == n_members for w in weights)
    assert len({tuple(w.flatten().tolist()) for model in weights for w in model}) == 2 * n_members
    assert all(model.pred_dist(X).loc.shape == (50 * n_members, 20, 1) for model in fitted)
    assert all(model.likelihood_.posterior.rate.shape == (n_members, 1) for model in fitted)


def test_each_result_is_a_whole_estimator(tmp_path):
    X, y = linear_table(40)
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    model = regressor(max_iter=5)
    first, second = fit_splits(model, frame, pd.Series(y), ShuffleSplit(2, random_state=0).split(X))
    assert not hasattr(model, "network_"), "the given estimator stays as it is"
    assert first.get_params() == model.get_params()
    assert list(first.feature_names_in_) == ["a", "b", "c"] and first.history_.last.step == 5
    first.save(tmp_path / "model.vmg")
    for copied in (pickle.loads(pickle.dumps(first)), vmg.load(tmp_path / "model.vmg")):
        np.testing.assert_array_equal(copied.predict_interval(frame), first.predict_interval(frame))
    before = second.predict(frame)
    first.partial_fit(frame, y).conformalize(frame, y)
    np.testing.assert_array_equal(second.predict(frame), before)
    assert np.isfinite(first.predict_interval(frame)).all()
    assert not torch.equal(first.network_.layers[0].loc, second.network_.layers[0].loc)


@pytest.mark.parametrize("options", [{}, {"n_members": 2}], ids=str)
def test_classification(options):
    X, y = class_table(60)
    splits = list(KFold(3).split(X))
    fitted = fit_splits(classifier(**LINEAR, **options), X, y, splits)
    for model, (_, test) in zip(fitted, splits, strict=True):
        np.testing.assert_array_equal(model.classes_, ["no", "perhaps", "yes"])
        assert model.score(X[test], y[test]) > 0.9
    other = y.copy()
    other[splits[0][1]] = "no"
    changed = fit_splits(classifier(**LINEAR, **options), X, other, splits)
    np.testing.assert_array_equal(changed[0].predict_proba(X), fitted[0].predict_proba(X))


def test_a_class_that_is_missing_from_the_training_rows():
    X, y = class_table(60)
    train = np.flatnonzero(y != "yes")
    [model, _] = fit_splits(classifier(**LINEAR), X, y, [(train, []), (np.arange(60), [])])
    assert model.predict_proba(X).shape == (60, 3)
    assert model.score(X[train], y[train]) > 0.9


def test_mistakes():
    X, y = linear_table(20)
    with pytest.raises(ValueError, match="splits must hold at least one"):
        fit_splits(regressor(), X, y, [])
    with pytest.raises(ValueError, match="every split must have training rows"):
        fit_splits(regressor(), X, y, [(np.arange(10), []), ([], np.arange(20))])
    with pytest.raises(ValueError, match="'n_draws'"):
        fit_splits(regressor(n_draws=0), X, y, [(np.arange(10), [])])
    with pytest.raises(ValueError, match="NaN"):
        fit_splits(regressor(), np.where(X > 0, np.nan, X), y, [(np.arange(10), [])])

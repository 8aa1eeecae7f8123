"""Conformal corrections: exact ranks, exact finite-sample coverage, groups, widths, boxes and sets."""

import itertools
import math

import numpy as np
import pytest

from quick import class_table, ensemble_classifier, ensemble_regressor, linear_table
from vmg.prediction.conformal import (
    CoverageError,
    class_scores,
    class_sets,
    conformal_level,
    conformal_region,
    group_intervals,
    ignorance_groups,
    row_scores,
    widened_interval,
)
from vmg.prediction.student import StudentPrediction


def student(loc, noise, function, df=5.0):
    columns = [np.asarray(part, dtype=float).reshape(len(loc), -1) for part in (loc, noise, function)]
    squeeze = np.ndim(loc) == 1
    return StudentPrediction(*columns, np.full(columns[0].shape[1], df), lambda: columns[2][None], squeeze=squeeze)


@pytest.mark.parametrize("n", [4, 5, 9])
@pytest.mark.parametrize("coverage", [0.3, 0.5, 0.8])
def test_the_level_covers_exactly_as_ranks_say(n, coverage):
    """Over all places that a new score can take among n others, the share below the level is ⌈(n+1)c⌉/(n+1)."""
    scores = np.arange(n + 1.0)
    below = 0
    for new in range(n + 1):
        others = np.sort(np.delete(scores, new))[:, None]
        below += scores[new] <= conformal_level(others, coverage)[0]
    assert below / (n + 1) == math.ceil((n + 1) * coverage - 1e-9) / (n + 1) >= coverage


def test_too_few_rows_are_told():
    with pytest.raises(CoverageError, match="at least 9 rows"):
        conformal_level(np.zeros((8, 1)), 0.9)


def coverage_of(make, n_calibration, n_repeats=400, n_new=20, seed=0):
    """Mean coverage over draws of calibration rows: ``make`` gives whether new rows are covered."""
    rng = np.random.default_rng(seed)
    return np.mean([make(rng, n_calibration, n_new) for _ in range(n_repeats)])


def rows(rng, n, *, outputs=None):
    """Predictions that are wrong in shape and size, and targets."""
    size = (n,) if outputs is None else (n, outputs)
    noise = rng.uniform(0.5, 3, n)
    y = noise[:, None] * rng.standard_exponential((n, outputs or 1)) if outputs else noise * rng.standard_exponential(n)
    scale = np.broadcast_to(0.3 * noise.reshape(-1, *[1] * (len(size) - 1)), size)
    return student(np.zeros(size), scale, 0.1 * scale), y


@pytest.mark.parametrize("kind", ["coverage", "width"])
def test_intervals_cover_in_finite_samples_whatever_the_model(kind):
    def covered(rng, n, n_new):
        prediction, y = rows(rng, n)
        scores = np.sort(row_scores(prediction, y, kind), axis=0)
        new, target = rows(rng, n_new)
        level = conformal_level(scores, 0.8)
        ends = new.interval_at(level) if kind == "coverage" else widened_interval(new, level)
        return np.mean((ends[:, 0] <= target) & (target <= ends[:, 1]))

    found = coverage_of(covered, 24)  # exactly 0.8 = 20/25
    assert abs(found - 0.8) < 4 * np.sqrt(0.16 / 400 / 6)


def test_boxes_cover_all_outputs_together():
    def covered(rng, n, n_new):
        prediction, y = rows(rng, n, outputs=3)
        scores = row_scores(prediction, y, "coverage")
        new, target = rows(rng, n_new, outputs=3)
        box = conformal_region(new, scores, 0.8)
        return np.mean(((box[..., 0] <= target) & (target <= box[..., 1])).all(1))

    assert abs(coverage_of(covered, 24) - 0.8) < 4 * np.sqrt(0.16 / 400 / 6)


def test_groups_cover_each_on_its_own():
    def each(rng, n, n_new):
        found = []
        prediction, y = rows(rng, n)
        label = np.arange(n) % 2
        y = np.where(label == 1, 10 * y, y)  # the model is ten times too sure of one group
        new, target = rows(rng, n_new)
        new_label = np.arange(n_new) % 2
        target = np.where(new_label == 1, 10 * target, target)
        ends = group_intervals(new, row_scores(prediction, y, "coverage"), label, new_label, 0.8, "coverage")
        inside = (ends[:, 0] <= target) & (target <= ends[:, 1])
        for group in (0, 1):
            found.append(inside[new_label == group].mean())
        return found

    rng = np.random.default_rng(1)
    found = np.mean([each(rng, 48, 20) for _ in range(400)], axis=0)
    assert (np.abs(found - 0.8) < 4 * np.sqrt(0.16 / 400 / 4)).all()


def test_sets_of_classes_cover():
    def covered(rng, n, n_new):
        def draw(size):
            p = rng.dirichlet(np.ones(4), size)
            label = np.array([rng.choice(4, p=row) for row in p])
            return p**2 / (p**2).sum(1, keepdims=True), label  # too sure

        p, label = draw(n)
        new, target = draw(n_new)
        return class_sets(new, class_scores(p, label), 0.8)[np.arange(n_new), target].mean()

    found = coverage_of(covered, 24, n_repeats=200)
    assert 0.8 - 4 * np.sqrt(0.16 / 200 / 6) < found < 0.87


def test_groups_of_ignorance_are_what_they_say():
    prediction = student(np.zeros(3), np.array([1.0, 1.0, 1.0]), np.array([0.1, 5.0, 0.9]))
    assert ignorance_groups(prediction).tolist() == ["noise", "ignorance", "noise"]


def test_widened_intervals_invert_scores_by_width():
    prediction, _ = rows(np.random.default_rng(0), 5)
    for level, side in itertools.product((-0.3, 0.0, 1.7), (0, 1)):
        ends = widened_interval(prediction, np.array([level]))
        np.testing.assert_allclose(row_scores(prediction, ends[:, side], "width")[:, 0], level, atol=1e-9)


# -- estimators -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def regressor():
    return ensemble_regressor(max_iter=40).fit(*linear_table(n_outputs=2))


def test_a_region_is_a_box_of_all_outputs(regressor):
    X, Y = linear_table(199, n_outputs=2, seed=3)
    regressor.conformalize(X, Y)
    X_new, Y_new = linear_table(500, n_outputs=2, seed=4)
    box, each = regressor.predict_region(X_new, 0.8), regressor.predict_interval(X_new, 0.8)
    inside = lambda ends: (ends[..., 0] <= Y_new) & (Y_new <= ends[..., 1])  # noqa: E731
    assert 0.7 < inside(box).all(1).mean() < 0.9
    assert inside(each).all(1).mean() < inside(box).all(1).mean()
    assert (box[..., 1] - box[..., 0] >= each[..., 1] - each[..., 0] - 1e-9).all()


def test_groups_of_rows(regressor):
    X, Y = linear_table(120, n_outputs=2, seed=3)
    label = np.where(X[:, 0] > 0, "right", "left")
    regressor.conformalize(X, Y, groups=label)
    with pytest.raises(ValueError, match="groups of the rows are needed"):
        regressor.predict_interval(X)
    with pytest.raises(ValueError, match="among those of conformalize"):
        regressor.predict_interval(X[:2], groups=["left", "above"])
    with pytest.raises(CoverageError, match="group left"):
        regressor.predict_interval(X, 0.995, groups=label)
    together = regressor.predict_interval(X, 0.8, groups=label)
    for one in ("left", "right"):
        alone = regressor.predict_interval(X[label == one], 0.8, groups=label[label == one])
        np.testing.assert_allclose(together[label == one], alone, rtol=1e-9)
    regressor.conformalize(X, Y, groups="ignorance", score="width")
    assert regressor.predict_interval(X, 0.6).shape == (120, 2, 2)
    with pytest.raises(ValueError, match="predict_region needs"):
        regressor.predict_region(X)


def test_amounts_by_width_have_no_bound_below_zero():
    X, y = linear_table(200)
    model = ensemble_regressor(likelihood="lognormal").fit(X[:100], np.exp(y[:100]))
    model.conformalize(X[100:], np.exp(y[100:]), score="width")
    assert model.predict_interval(X, 0.95).min() >= 0


def test_a_calibration_survives_its_file_and_not_an_update(regressor, tmp_path):
    import vmg

    X, Y = linear_table(120, n_outputs=2, seed=3)
    label = np.where(X[:, 0] > 0, "right", "left")
    regressor.conformalize(X, Y, groups=label)
    regressor.save(tmp_path / "model.vmg")
    loaded = vmg.load(tmp_path / "model.vmg")
    assert np.array_equal(
        loaded.predict_interval(X, 0.7, groups=label), regressor.predict_interval(X, 0.7, groups=label)
    )
    loaded.partial_fit(X, Y)
    assert loaded.predict_interval(X, 0.7).shape == (120, 2, 2)
    with pytest.raises(ValueError, match="predict_region needs"):
        loaded.predict_region(X)


def test_sets_of_a_classifier(tmp_path):
    import vmg

    model = ensemble_classifier().fit(*class_table())
    X, y = class_table(150, seed=5)
    with pytest.raises(ValueError, match="predict_set needs conformalize"):
        model.predict_set(X)
    model.conformalize(X, y)
    X_new, y_new = class_table(300, seed=6)
    found = model.predict_set(X_new, 0.9)
    assert found.shape == (300, 3) and found.any(1).all()
    assert found[np.arange(300), np.searchsorted(model.classes_, y_new)].mean() > 0.85
    model.save(tmp_path / "model.vmg")
    assert np.array_equal(vmg.load(tmp_path / "model.vmg").predict_set(X_new, 0.9), found)
    labels = np.where(X[:, 0] > 0, 1, 0)
    model.conformalize(X, y, groups=labels)
    assert model.predict_set(X, 0.8, groups=labels).shape == (150, 3)
    with pytest.raises(ValueError, match="groups"):
        model.predict_set(X, 0.8)
    assert model.fit(X, y).conformal_scores_ is None

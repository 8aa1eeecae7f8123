from dataclasses import astuple

import numpy as np
import pandas as pd
import pytest

from vmg import metrics
from vmg.estimators import TableModel
from vmg.report.classification import _calibration_error_by_chance, classification_contents
from vmg.report.facts import CERTAIN_ROWS, choose, extremes, read_columns, summarise_columns, training_curve
from vmg.report.influence import EFFECT_GRID, column_effects, column_influences, effect_grid, function_draws
from vmg.report.regression import nominal_coverage, regression_contents


def test_regression_scores_are_those_of_metrics(regression):
    model, frame = regression
    scores = regression_contents(model, frame).scores
    y = frame["price"].to_numpy()
    prediction = model.pred_dist(frame)
    assert scores.n_rows == len(frame)
    assert scores.rmse == pytest.approx(metrics.rmse(y, prediction.mean), rel=1e-12)
    assert scores.log_likelihood == pytest.approx(metrics.log_likelihood(prediction.log_prob(y)), rel=1e-12)
    assert scores.crps == pytest.approx(prediction.crps(y).mean(), rel=1e-12)
    for coverage in scores.coverages:
        interval = prediction.interval(coverage.stated)
        assert coverage.observed == metrics.interval_coverage(y, interval)
        assert coverage.width == pytest.approx(metrics.interval_width(interval), rel=1e-9)


def test_regression_scores_are_those_of_evaluate(regression):
    model, frame = regression
    scores, evaluated = regression_contents(model, frame).scores, model.evaluate(frame)
    for name in ("rmse", "r2", "log_likelihood", "crps"):
        assert getattr(scores, name) == pytest.approx(evaluated[name], rel=1e-9)
    assert scores.interval.observed == evaluated["coverage"]
    assert scores.interval.width == pytest.approx(evaluated["width"], rel=1e-9)


def test_a_conformalised_model_is_shown_with_its_own_intervals(line):
    model, frame = line
    level = np.linspace(0.02, 0.99, 50)[:, None]
    scores = np.sort(level**2, axis=0)  # as if the model were too cautious
    conformal = type(model.estimator)(model.inputs, [3.0, 0.0], conformal_scores_=scores)
    shown = regression_contents(type(model)(conformal, "y", "regression"), frame)
    plain = regression_contents(model, frame)
    assert shown.scores.interval.observed < plain.scores.interval.observed
    assert shown.scores.interval.width < plain.scores.interval.width
    inside = (shown.interval[:, 0] <= shown.truth) & (shown.truth <= shown.interval[:, 1])
    assert inside.mean() == shown.scores.interval.observed


def test_too_few_calibration_rows_leave_an_interval_as_it_is(line):
    estimator = type(line[0].estimator)(
        line[0].inputs, [3.0, 0.0], conformal_scores_=np.linspace(0.1, 0.9, 10)[:, None]
    )
    assert nominal_coverage(estimator, 0.95) == 0.95
    assert nominal_coverage(estimator, 0.5) == estimator.conformal_scores_[5, 0]


def test_classification_scores_are_those_of_metrics(multiclass):
    model, frame = multiclass
    shown = classification_contents(model, frame)
    probs = model.pred_dist(frame).probabilities
    labels = np.searchsorted(model.estimator.classes_, frame["band"].to_numpy(dtype=str))
    scores = shown.scores
    assert scores.accuracy == 1 - metrics.error_rate(probs, labels)
    assert scores.brier == metrics.brier_score(probs, labels)
    assert scores.calibration_error == metrics.expected_calibration_error(probs, labels)
    assert scores.log_likelihood == pytest.approx(model.evaluate(frame)["log_likelihood"], rel=1e-12)
    assert shown.confusion.sum() == len(frame)
    assert np.trace(shown.confusion) / len(frame) == pytest.approx(scores.accuracy)
    assert sum(b.n_rows for b in shown.reliability) == len(frame)
    assert sum(b.n_rows * b.accuracy for b in shown.reliability) / len(frame) == pytest.approx(scores.accuracy)
    assert all(b.low <= b.accuracy <= b.high for b in shown.reliability)
    rejected, accuracy = shown.rejection(shown.entropy)
    assert rejected[0] == 0
    assert accuracy[0] == pytest.approx(scores.accuracy)


def test_guesses_are_what_a_guess_would_score(line):
    model, frame = line
    scores, y = regression_contents(model, frame).scores, frame["y"].to_numpy()
    assert scores.rmse_guess == pytest.approx(metrics.rmse(y, np.full(len(y), y.mean())))
    normal = -0.5 * np.log(2 * np.pi * y.var()) - (y - y.mean()) ** 2 / (2 * y.var())
    assert scores.log_likelihood_guess == pytest.approx(normal.mean())


def test_the_calibration_error_of_perfect_probabilities_is_foreseen():
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.5, 1, 400)
    probs = np.stack([confidence, 1 - confidence], 1)
    errors = [metrics.expected_calibration_error(probs, (rng.random(400) > confidence).astype(int)) for _ in range(200)]
    foreseen = _calibration_error_by_chance(confidence)
    assert np.mean(errors) == pytest.approx(foreseen, abs=4 * np.std(errors) / np.sqrt(200) + 0.002)


def numbers(scores):
    *single, coverages, width = astuple(scores)
    return [*single, *(part for coverage in coverages for part in coverage), width]


def test_rows_without_truth_are_left_out_of_scores_only(regression):
    model, frame = regression
    holes = frame.copy()
    holes.loc[holes.index[:5], "price"] = np.nan
    shown, rest = regression_contents(model, holes), regression_contents(model, frame.iloc[5:])
    assert numbers(shown.scores) == pytest.approx(numbers(rest.scores), rel=1e-9)  # interval ends are roots
    assert len(shown.mean) == len(frame)
    assert np.isnan(shown.truth[:5]).all()


def test_classes_never_seen_are_counted(binary):
    model, frame = binary
    strange = frame.copy()
    strange.loc[strange.index[:3], "dear"] = "perhaps"
    strange.loc[strange.index[3], "dear"] = None
    shown = classification_contents(model, strange)
    assert shown.n_unknown_classes == 3
    assert shown.scores.n_rows == len(frame) - 4


def test_classes_are_read_as_in_evaluate():
    frame = pd.DataFrame({"x": np.arange(40) % 2, "y": ["01", "02"] * 20})
    model = TableModel.fit(frame, "y", options={"max_iter": 1, "n_members": 2})
    shown = classification_contents(model, frame)
    assert shown.classes == ("01", "02") and shown.n_unknown_classes == 0
    assert shown.scores.accuracy == model.evaluate(frame)["accuracy"]


def test_columns_in_their_own_types_make_the_same_features(regression):
    model, frame = regression
    read = read_columns(model, frame)
    np.testing.assert_array_equal(model.encoder.transform(read), model.encoder.transform(frame))
    assert read["area, m²"].dtype == np.float64
    assert pd.api.types.is_datetime64_any_dtype(read["sold"])


def test_summary_of_columns(regression):
    model, frame = regression
    summary = {column.name: column for column in summarise_columns(model, frame)}
    assert [column.kind for column in summary.values()] == [
        "number",
        "number",
        "category",
        "boolean",
        "date",
        "text",
        "target",
    ]
    assert summary["district"].n_missing == frame["district"].isna().sum()
    assert summary["key"].unused == "its texts are all different, like identifiers"
    assert summary["rooms"].numbers == (frame["rooms"].min(), frame["rooms"].median(), frame["rooms"].max())
    assert summary["price"].n_distinct == frame["price"].nunique()
    assert sum(share for _, share in summary["garden"].common) == pytest.approx(1)


def test_influence_and_effect_of_a_known_function(line):
    model, frame = line
    first, second = column_influences(model, frame, 10)
    assert (first.column, first.relevance) == ("a", 1.0)
    # E(3a − 3a')² = 18 for independent standard a and a'; 200 rows
    assert first.mean == pytest.approx(np.sqrt(18), rel=0.2)
    assert first.low == pytest.approx(0.91 * first.mean, rel=1e-9)  # draws are 0.9, 1 and 1.1 times the function
    assert first.high == pytest.approx(1.09 * first.mean, rel=1e-9)
    assert (second.column, second.mean, second.relevance) == ("b", 0.0, 0.0)

    effect, flat = column_effects(model, frame, ["a", "b"])
    np.testing.assert_allclose(effect.mean[:, 0], 3 * effect.values.astype(float), rtol=1e-9)
    assert (effect.low <= effect.mean).all()
    assert (effect.high >= effect.mean).all()
    assert effect.size == pytest.approx(3 * np.ptp(effect.values))
    np.testing.assert_allclose(flat.mean, np.full_like(flat.mean, flat.mean[0, 0]))


def test_influence_compares_the_same_functions(regression):
    """A column that is shuffled in a table of one row moves no draw of the function at all."""
    model, frame = regression
    assert all(influence.high == 0 for influence in column_influences(model, frame.iloc[:1], 3))
    draws = function_draws(model, frame)
    np.testing.assert_allclose(function_draws(model, frame.iloc[5:9]), draws[:, 5:9], rtol=1e-4, atol=1e-3)


def test_effects_of_every_kind_of_column(regression):
    model, frame = regression
    effects = {effect.column: effect for effect in column_effects(model, frame, model.encoder.column_names)}
    assert set(effects) == {"area, m²", "rooms", "district", "garden", "sold"}
    assert set(effects["district"].values) == {"North", "South", "Old <Town>"}
    assert np.all(np.diff(effects["district"].mean[:, 0]) <= 0)
    assert effects["rooms"].values.tolist() == sorted(frame["rooms"].unique())
    assert effects["sold"].values.dtype.kind == "M"
    assert effects["sold"].observed.dtype.kind == "M"
    assert len(effects["area, m²"].values) == EFFECT_GRID


def test_grid_of_a_column_with_one_or_no_value():
    assert len(effect_grid(pd.Series([2.0, 2.0, np.nan]))[0]) == 1
    assert len(effect_grid(pd.Series([np.nan, np.nan]))[0]) == 0
    assert len(effect_grid(pd.Series([None, None], dtype=object))[0]) == 0
    spike = pd.Series([*np.zeros(2000), *range(1, 20)], dtype=float)  # its central 98 % is one value
    grid, _ = effect_grid(spike)
    assert (grid.iloc[0], grid.iloc[-1]) == (0, 19)


@pytest.mark.parametrize("n", [1, 2, 3, 7, 50])
def test_extremes_never_share_a_row(n):
    certain, uncertain = extremes(np.random.default_rng(0).random(n))
    assert not set(certain) & set(uncertain)
    assert len(certain) + len(uncertain) == min(n, 2 * CERTAIN_ROWS)


def test_rows_of_a_prediction(regression, line):
    rows = np.array([4, 1])
    for model, frame in (regression, line):
        whole = model.filled_dist(frame)
        some, y = whole.take(rows), np.array([1.0, 100.0])
        np.testing.assert_array_equal(some.mean, whole.mean[rows])
        np.testing.assert_array_equal(some.std, whole.std[rows])
        np.testing.assert_allclose(some.row_covariance(), whole.row_covariance()[np.ix_(rows, rows)], rtol=1e-9)
        assert (some.crps(y) > 0).all()


def test_subsamples_are_always_the_same():
    np.testing.assert_array_equal(choose(1000, 10), choose(1000, 10))
    np.testing.assert_array_equal(choose(5, 10), np.arange(5))
    assert len(np.unique(choose(1000, 10))) == 10


def test_the_training_curve_leaves_out_a_last_report_of_few_steps(line):
    estimator = line[0].estimator
    curve = training_curve(estimator)
    assert curve.step.tolist() == [4, 8, 10]
    estimator = type(estimator)(estimator.inputs_, [1.0])
    records = estimator.history_.records
    estimator.history_.records = [*records[:2], type(records[0])(9, 10, -9.0, -9.0, 0.0, 0.01, 1.0)]
    assert training_curve(estimator).step.tolist() == [4, 8]
    np.testing.assert_allclose(curve.objective, curve.fit - curve.complexity)
    estimator.history_.records = []
    assert training_curve(estimator) is None

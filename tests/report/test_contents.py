import numpy as np
import pandas as pd
import pytest

from vmg import metrics
from vmg.estimators import TableModel
from vmg.report import facts, render_report
from vmg.review.remarks import column_facts


def test_scores_are_those_of_evaluate_beside_a_guess(regression):
    model, frame = regression
    contents = facts.read_contents(model, frame)
    assert contents.scores == model.evaluate(frame)
    y, (mean, std) = frame["price"].to_numpy(), model.base_rate
    assert contents.base["rmse"] == pytest.approx(metrics.rmse(y, np.full(len(y), mean)))
    normal = -0.5 * np.log(2 * np.pi * std**2) - (y - mean) ** 2 / (2 * std**2)
    assert contents.base["log_likelihood"] == pytest.approx(normal.mean())
    prediction = model.pred_dist(frame)
    for coverage in facts.read_intervals(model, contents).coverages:
        interval = prediction.interval(coverage.stated)
        assert coverage.observed == metrics.interval_coverage(y, interval)
        assert coverage.width == pytest.approx(metrics.interval_width(interval), rel=1e-9)


def test_all_rows_are_scored_where_some_are_shown(regression, monkeypatch):
    model, frame = regression
    monkeypatch.setattr(facts, "SHOWN_ROWS", 10)
    contents = facts.read_contents(model, frame)
    assert len(contents.position) == 10 and contents.scores == model.evaluate(frame)
    page = render_report(model, frame)
    assert "Scores are of all rows; pictures show 10 rows chosen at random." in page


def test_a_conformalised_model_is_shown_with_its_own_intervals(line):
    model, frame = line
    level = np.linspace(0.02, 0.99, 50)[:, None]
    scores = np.sort(level**2, axis=0)  # as if the model were too cautious
    conformal = type(model.estimator)(model.inputs, [3.0, 0.0], conformal_scores_=scores)
    models = model, type(model)(conformal, "y", "regression")
    plain, shown = ((facts.read_contents(one, frame), one) for one in models)
    assert shown[0].scores["coverage"] < plain[0].scores["coverage"]
    intervals = facts.read_intervals(shown[1], shown[0])
    truth = shown[0].truth[intervals.drawn]
    inside = (intervals.ends[:, 0] <= truth) & (truth <= intervals.ends[:, 1])
    assert inside.mean() == shown[0].scores["coverage"] == intervals.coverages[2].observed


def test_reliability_is_of_all_rows(multiclass):
    model, frame = multiclass
    contents = facts.read_contents(model, frame)
    bins, accuracy = facts.read_reliability(contents), model.evaluate(frame)["accuracy"]
    assert sum(b.n_rows for b in bins) == len(frame)
    assert sum(b.n_rows * b.accuracy for b in bins) / len(frame) == pytest.approx(accuracy)
    assert all(b.low <= b.accuracy <= b.high for b in bins)


def test_the_calibration_error_of_perfect_probabilities_is_foreseen():
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.5, 1, 400)
    probs = np.stack([confidence, 1 - confidence], 1)
    errors = [metrics.expected_calibration_error(probs, (rng.random(400) > confidence).astype(int)) for _ in range(200)]
    foreseen = facts.calibration_error_by_chance(confidence)
    assert np.mean(errors) == pytest.approx(foreseen, abs=4 * np.std(errors) / np.sqrt(200) + 0.002)


def test_rows_without_truth_are_left_out_of_scores_only(regression):
    model, frame = regression
    holes = frame.copy()
    holes.loc[holes.index[:5], "price"] = np.nan
    shown = facts.read_contents(model, holes)
    assert shown.scores == model.evaluate(frame.iloc[5:])
    assert len(shown.prediction.mean) == len(frame) and np.isnan(shown.truth[:5]).all()


def test_classes_never_seen_are_counted(binary):
    model, frame = binary
    strange = frame.copy()
    strange.loc[strange.index[:3], "dear"] = "perhaps"
    strange.loc[strange.index[3], "dear"] = None
    shown = facts.read_contents(model, strange)
    assert shown.n_unknown_classes == 3
    assert shown.scores["rows"] == len(frame) - 4


def test_classes_are_read_as_in_evaluate():
    frame = pd.DataFrame({"x": np.arange(40) % 2, "y": ["01", "02"] * 20})
    model = TableModel.fit(frame, "y", options={"max_iter": 1, "n_members": 2})
    shown = facts.read_contents(model, frame)
    assert list(shown.prediction.classes) == ["01", "02"] and shown.n_unknown_classes == 0
    assert shown.scores == model.evaluate(frame)


def test_columns_in_their_own_types_make_the_same_features(regression):
    model, frame = regression
    read = facts.read_columns(model, frame)
    np.testing.assert_array_equal(model.encoder.transform(read), model.encoder.transform(frame))
    assert read["area, m²"].dtype == np.float64
    assert pd.api.types.is_datetime64_any_dtype(read["sold"])


def test_facts_of_columns_are_those_of_the_table_that_is_shown(regression):
    model, frame = regression
    found = {column.name: column for column in column_facts(model.encoder, frame, model.target, model.task)}
    kinds = ["number", "number", "category", "boolean", "date", "text", "number"]
    assert [column.type for column in found.values()] == kinds
    assert found["district"].missing == frame["district"].isna().sum()
    assert found["rooms"].values == f"{frame['rooms'].min()} to {frame['rooms'].max()}"
    assert found["key"].role == "left out" and found["price"].role == "target"
    assert found["price"].different == frame["price"].nunique()
    assert found["sold"].values[:4].isdecimal() and set(found["garden"].values.split(", ")) == {"True", "False"}


def test_influence_and_effect_of_a_known_function(line):
    model, frame = line
    first, second = facts.column_influences(model, frame, 10)
    assert first.column == "a"
    # E(3a − 3a')² = 18 for independent standard a and a'; 200 rows
    assert first.mean == pytest.approx(np.sqrt(18), rel=0.2)
    assert first.low == pytest.approx(0.91 * first.mean, rel=1e-9)  # draws are 0.9, 1 and 1.1 times the function
    assert first.high == pytest.approx(1.09 * first.mean, rel=1e-9)
    assert (second.column, second.mean) == ("b", 0.0)

    effect, flat = facts.column_effects(model, frame, ["a", "b"])
    np.testing.assert_allclose(effect.mean[:, 0], 3 * effect.values.astype(float), rtol=1e-9)
    assert (effect.low <= effect.mean).all()
    assert (effect.high >= effect.mean).all()
    np.testing.assert_allclose(flat.mean, np.full_like(flat.mean, flat.mean[0, 0]))


def test_influence_compares_the_same_functions(regression):
    """A column that is shuffled in a table of one row moves no draw of the function at all."""
    model, frame = regression
    assert all(influence.high == 0 for influence in facts.column_influences(model, frame.iloc[:1], 3))
    draws = facts.function_draws(model, frame)
    np.testing.assert_allclose(facts.function_draws(model, frame.iloc[5:9]), draws[:, 5:9], rtol=1e-4, atol=1e-3)


def test_effects_of_every_kind_of_column(regression):
    model, frame = regression
    effects = {effect.column: effect for effect in facts.column_effects(model, frame, model.encoder.column_names)}
    assert set(effects) == {"area, m²", "rooms", "district", "garden", "sold"}
    assert set(effects["district"].values) == {"North", "South", "Old <Town>"}
    assert np.all(np.diff(effects["district"].mean[:, 0]) <= 0)
    assert effects["rooms"].values.tolist() == sorted(frame["rooms"].unique())
    assert effects["sold"].values.dtype.kind == "M"
    assert effects["sold"].observed.dtype.kind == "M"
    assert len(effects["area, m²"].values) == facts.EFFECT_GRID


def test_grid_of_a_column_with_one_or_no_value():
    assert len(facts.effect_grid(pd.Series([2.0, 2.0, np.nan]))[0]) == 1
    assert len(facts.effect_grid(pd.Series([np.nan, np.nan]))[0]) == 0
    assert len(facts.effect_grid(pd.Series([None, None], dtype=object))[0]) == 0
    spike = pd.Series([*np.zeros(2000), *range(1, 20)], dtype=float)  # its central 98 % is one value
    grid, _ = facts.effect_grid(spike)
    assert (grid.iloc[0], grid.iloc[-1]) == (0, 19)


@pytest.mark.parametrize("n", [1, 2, 3, 7, 50])
def test_extremes_never_share_a_row(n):
    certain, uncertain = facts.extremes(np.random.default_rng(0).random(n))
    assert not set(certain) & set(uncertain)
    assert len(certain) + len(uncertain) == min(n, 2 * facts.CERTAIN_ROWS)


def test_rows_of_a_prediction(regression, line):
    rows = np.array([4, 1])
    for model, frame in (regression, line):
        whole = model.filled_dist(frame)
        some, y = whole.take(rows), np.array([1.0, 100.0])
        np.testing.assert_array_equal(some.mean, whole.mean[rows])
        np.testing.assert_allclose(some.std, whole.std[rows], rtol=1e-14)  # sums of another number of rows
        np.testing.assert_allclose(some.row_covariance(), whole.row_covariance()[np.ix_(rows, rows)], rtol=1e-9)
        assert (some.crps(y) > 0).all()


def test_subsamples_are_always_the_same():
    np.testing.assert_array_equal(facts.choose(1000, 10), facts.choose(1000, 10))
    np.testing.assert_array_equal(facts.choose(5, 10), np.arange(5))
    assert len(np.unique(facts.choose(1000, 10))) == 10

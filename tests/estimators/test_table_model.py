from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import vmg
from messy import OPTIONS, homes, houses
from vmg.estimators import TableModel
from vmg.prediction.conformal import CoverageError
from vmg.tables import TableError
from vmg.tables.columns import TableChoices


@pytest.fixture(scope="module")
def regression():
    return TableModel.fit(houses(), "price", options=OPTIONS)


@pytest.fixture(scope="module")
def classification():
    return TableModel.fit(homes(), "kind", options=OPTIONS)


def table(target, **columns):
    n = len(target)
    return pd.DataFrame({"x": np.arange(n) % 7, **columns, "y": target})


# -- the task ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "task"),
    [
        (np.linspace(0, 1, 40), "regression"),
        (np.arange(40), "regression"),
        ([0.5, 1.25, 2.0, 7.5, 3.0, 4.5], "regression"),  # few, but hardly any twice
        (np.arange(40) % 3, "classification"),
        (np.arange(40) % 2 == 0, "classification"),
        (["yes", "no"] * 20, "classification"),
        ([f"{1000 + i:,}" for i in range(40)], "regression"),
    ],
    ids=["floats", "integers", "few rows", "few integers", "booleans", "texts", "thousands"],
)
def test_the_task_is_inferred_and_said(target, task):
    model = TableModel.fit(table(target), "y", options=OPTIONS)
    assert model.task == task
    assert model.notes[0].startswith(f"Task: {task}, as the target 'y' is")


def test_the_task_can_be_chosen():
    frame = table(np.arange(40) % 4)
    assert TableModel.fit(frame, "y", task="regression", options=OPTIONS).task == "regression"
    assert TableModel.fit(frame, "y", task="classification", options=OPTIONS).task == "classification"


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ([1, 0, None, 1.0] * 10, [0, 1]),
        ([True, False] * 20, ["False", "True"]),
        ([0.5, 1.5] * 20, ["0.5", "1.5"]),
        (["b", " a "] * 20, ["a", "b"]),
        (["1", "2 "] * 20, [1, 2]),
        (["01", "1", None, "02"] * 10, ["01", "02", "1"]),
    ],
)
def test_classes_are_whole_numbers_or_texts(target, expected):
    model = TableModel.fit(table(target), "y", task="classification", options=OPTIONS)
    assert model.estimator.classes_.tolist() == expected
    assert model.evaluate(table(target))["rows"] == pd.Series(target).notna().sum()


# -- what cannot be fitted --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("frame", "options", "message"),
    [
        (table([1.0, 2, 3, 4, 5]), {"target": "z"}, "no column 'z'; it has 'x', 'y'"),
        (table([1.0, 2, 3, 4, 5]), {"exclude": ["z"]}, "no column 'z'"),
        (table([1.0, 2, 3, 4, 5]), {"exclude": ["y"]}, "target 'y' cannot be excluded"),
        (table([1.0, 2, 3, 4, 5]), {"exclude": ["x"]}, "no column is left"),
        (table([1.0]), {}, "at least 5 rows with a target; got 1"),
        (table([None] * 9 + [1.0]), {}, "at least 5 rows with a target; got 1"),
        (table([3.0] * 9), {}, "target 'y' is always '3': there is nothing to learn"),
        (table(["a", "b"] * 9), {"task": "regression"}, "must hold finite numbers; got 'a', 'b' in 18 rows of 18"),
        (table([*map(str, range(99)), "old"]), {}, "must hold finite numbers; got 'old' in 1 row of 100"),
        (table([*np.linspace(0, 1, 99), np.inf]), {}, "must hold finite numbers; got 'inf' in 1 row of 100"),
        (table([1.0, 2, 3, 4, 5]).set_axis([0, "y"], axis=1), {}, "names of columns must be texts; got '0'"),
        (table([f"t{i}" for i in range(9)]), {}, "too many to be classes and they are not numbers"),
        (table(np.arange(9.0)), {"task": "classification"}, "too many to be classes; use the task regression"),
        (table(["a", "b"] * 50), {"conformal": 0.3}, "conformal calibrates intervals of regression"),
        (table(np.arange(50.0)), {"conformal": 0.1}, "conformal needs at least 19 rows"),
        (table(np.arange(50.0)), {"conformal": 1.5}, "conformal must be a share"),
    ],
)
def test_what_cannot_be_fitted_is_said(frame, options, message):
    with pytest.raises(TableError, match=message):
        TableModel.fit(frame, **{"target": "y", "options": OPTIONS, **options})


# -- fitting ----------------------------------------------------------------------------------------------------------


def test_notes_are_told_before_training_and_callbacks_are_called():
    events = []
    model = TableModel.fit(
        houses(),
        "price",
        exclude=["tax"],
        options=OPTIONS,
        tell=events.append,
        callbacks=[lambda progress: events.append(progress.step)],
    )
    n_notes = len(model.notes)
    assert tuple(events[:n_notes]) == model.notes
    assert events[-1] == model.estimator.history_.last.step and len(events) > n_notes
    assert "3 rows without a target left out." in model.notes
    assert "Columns left out as asked: 'tax'." in model.notes
    assert "tax" not in model.encoder.column_names


def test_conformal_rows_are_kept_out_of_the_fit():
    model = TableModel.fit(houses(80), "price", conformal=0.4, options=OPTIONS)
    assert len(model.estimator.conformal_scores_) == 30  # of 76 rows with a target
    assert "30 rows set aside to calibrate intervals." in model.notes
    wide, narrow = (model.predict_frame(houses(5, seed=1), c) for c in (0.9, 0.5))
    assert (wide["price_upper"] - wide["price_lower"] > narrow["price_upper"] - narrow["price_lower"]).all()
    for ask in (model.predict_frame, model.evaluate):
        with pytest.raises(CoverageError, match=r"conformalize needs at least 99 rows for coverage 0\.99; got 30"):
            ask(houses(), 0.99)
    with pytest.raises(CoverageError, match=r"conformalize needs at least 99 rows for coverage 0\.99; got 30"):
        model.estimator.predict_interval(houses()[model.encoder.column_names], 0.99)
    interval = model.estimator.predict_interval(houses()[model.encoder.column_names], 0.8)
    assert np.array_equal(model.predict_frame(houses(), 0.8)[["price_lower", "price_upper"]], interval)


def test_the_target_may_have_decimal_commas():
    frame = table([f"{value:.2f}".replace(".", ",") for value in np.linspace(0, 9, 30)])
    model = TableModel.fit(frame, "y", options=OPTIONS)
    assert model.decimal_comma and "Numbers read with decimal commas: 1,5 is one and a half." in model.notes
    assert model.target_values(frame)[-1] == 9.0


@pytest.mark.parametrize("size", [1e307, 1e155, 1e-163, 1e-300])
def test_targets_whose_squares_leave_the_range_of_numbers_are_named(size):
    frame = houses().assign(price=size * np.linspace(0.1, 1, 60))
    with pytest.raises(TableError, match="target 'price' must have its largest value between 1e-150 and 1e"):
        TableModel.fit(frame, "price", options=OPTIONS)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ([[k, k] for k in range(60)], "must hold one number or text a row; got lists or structures"),
        ([{"a": k % 2} for k in range(60)], "got lists or structures"),
        (np.arange(60) * 1j, "must hold real numbers, texts or dates; got complex128"),
        (["a", "a "] * 30, "is always 'a': there is nothing to learn"),
    ],
    ids=["lists", "structures", "complex", "classes that differ by spaces"],
)
def test_targets_of_strange_types(target, message):
    frame = houses().assign(price=pd.Series(list(target)))
    with pytest.raises(TableError, match=message):
        TableModel.fit(frame, "price", options=OPTIONS)


def test_columns_of_strange_types():
    frame = houses().assign(
        sparse=pd.arrays.SparseArray(np.arange(60) % 3),
        arrow=pd.Series(np.arange(60) % 5).astype("int64[pyarrow]"),
        lists=[[k] for k in range(60)],
        large=np.linspace(-1e307, 1e307, 60),
    )
    with pytest.raises(TableError, match="the column 'large' must hold numbers of at most 1e"):
        TableModel.fit(frame, "price", options=OPTIONS)
    frame = frame.drop(columns="large")
    model = TableModel.fit(frame, "price", options=OPTIONS)
    assert {"sparse", "arrow"} <= set(model.encoder.column_names)
    assert model.encoder.dropped["lists"] == "its cells are lists or structures"
    plain = frame.assign(sparse=np.arange(60) % 3, arrow=np.arange(60) % 5)
    np.testing.assert_array_equal(model.encoder.transform(frame), model.encoder.transform(plain))


# -- predicting and scoring -------------------------------------------------------------------------------------------


def test_predictions_of_numbers(regression):
    frame = houses(seed=1).drop(columns="price").set_axis(np.arange(100, 160))
    found = regression.predict_frame(frame, coverage=0.8)
    names = [f"price{part}" for part in ("", "_std", "_lower", "_upper", "_noise", "_ignorance")]
    assert list(found) == [*names, "familiarity", "flags"]
    assert found.index.equals(frame.index)
    assert (found["price_lower"] < found["price"]).all() and (found["price"] < found["price_upper"]).all()
    np.testing.assert_allclose(found["price_std"] ** 2, found["price_noise"] ** 2 + found["price_ignorance"] ** 2)
    assert np.array_equal(found["price"], regression.pred_dist(frame).mean)


def test_the_median_and_probabilities_to_exceed_bounds(regression, classification):
    frame, said = houses(seed=1), regression.pred_dist(houses(seed=1))
    found = regression.predict_frame(frame, point="median", above=[100, 1e6])
    assert np.array_equal(found["price"], said.quantile(0.5))
    assert np.array_equal(found["price_above_100"], said.probability(above=100))
    assert (found["price_above_1e+06"] < 0.5).all()
    with pytest.raises(TableError, match="point and above are for numbers"):
        classification.predict_frame(homes(), above=[1])


def test_predictions_of_classes(classification):
    found = classification.predict_frame(homes(seed=1).drop(columns="kind"))
    probabilities = ["kind_probability_cheap", "kind_probability_dear"]
    about_doubt = ["kind_entropy", "kind_noise", "kind_ignorance"]
    assert list(found) == ["kind", *probabilities, *about_doubt, "familiarity", "flags"]
    assert set(found["kind"]) <= {"cheap", "dear"}
    np.testing.assert_allclose(found[probabilities].sum(axis=1), 1)
    np.testing.assert_allclose(found["kind_noise"] + found["kind_ignorance"], found["kind_entropy"], atol=1e-12)


def test_long_tables_are_cut_into_pieces_that_do_not_show(regression, monkeypatch):
    whole = regression.predict_frame(houses())
    monkeypatch.setattr("vmg.prediction.base.ROWS_AT_ONCE", 7)
    pd.testing.assert_frame_equal(regression.predict_frame(houses()), whole, rtol=1e-6)


def test_scores(regression, classification):
    scores = regression.evaluate(houses(seed=1))
    assert list(scores) == ["rows", "rmse", "r2", "log_likelihood", "crps", "coverage", "width"]
    assert scores["rows"] == 57 and scores["crps"] < scores["rmse"]
    scores = classification.evaluate(homes(seed=1))
    assert list(scores) == ["rows", "accuracy", "log_likelihood", "brier", "ece"]
    assert np.isnan(regression.evaluate(houses().iloc[[0]])["r2"])


def test_wrong_tables_at_prediction(regression, classification):
    with pytest.raises(TableError, match="lacks 1 column that the model was fitted on: 'area'"):
        regression.predict_frame(houses().drop(columns="area"))
    with pytest.raises(TableError, match="no rows"):
        regression.predict_frame(houses().iloc[:0])
    with pytest.raises(TableError, match="coverage must be between 0 and 1; got 90"):
        regression.predict_frame(houses(), 90)
    with pytest.raises(TableError, match="no column 'price'"):
        regression.evaluate(houses().drop(columns="price"))
    with pytest.raises(TableError, match="no row has a value in the target 'price'"):
        regression.evaluate(houses().assign(price=None))
    with pytest.raises(TableError, match="target 'price' must hold finite numbers; got 'much'"):
        regression.evaluate(houses().assign(price="much"))
    with pytest.raises(TableError, match="target 'kind' must be one of 'cheap', 'dear'; got 'free'"):
        classification.evaluate(homes().assign(kind="free"))


# -- saving -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["regression", "classification"])
def test_a_round_trip_changes_no_bit(kind, request, tmp_path):
    model = request.getfixturevalue(kind)
    model.save(tmp_path / "model.vmg")
    loaded = vmg.load(tmp_path / "model.vmg")
    assert isinstance(loaded, TableModel)
    frame = houses(seed=1)
    assert loaded.predict_frame(frame).equals(model.predict_frame(frame))
    for part in ("encoder", "target", "task", "notes"):
        assert getattr(loaded, part) == getattr(model, part)


def test_notebooks_show_what_a_model_is():
    model = TableModel.fit(houses().rename(columns={"area": "<b>area"}), "price", options=OPTIONS)
    shown = replace(model, held_out={"rmse": 1.25}, unit="km")._repr_html_()
    assert "price (km)" in shown and "networks" in shown and "held-out rmse" in shown and "<td>1.25</td>" in shown
    assert "&lt;b&gt;area" in shown and "<b>area" not in shown and model.notes[-1] in shown


def test_words_that_mean_missing_are_kept_in_the_file(tmp_path):
    choices = TableChoices.of(na_values=("none", "-9"), header=False)
    model = TableModel.fit(table(np.linspace(0, 1, 40)), "y", choices=choices, options=OPTIONS)
    model.save(tmp_path / "a.vmg")
    assert vmg.load(tmp_path / "a.vmg").choices == choices


def test_each_bound_has_a_column_of_its_own(regression):
    bounds = [0.1, 1_000_001, 1_000_002]
    predicted = regression.predict_frame(houses(), above=bounds)
    assert {f"price_above_{bound}" for bound in bounds} <= set(predicted)
    with pytest.raises(TableError, match="above must be numbers"):
        regression.predict_frame(houses(), above=[np.nan])


@pytest.mark.parametrize("name", ["familiarity", "flags"])
def test_a_target_has_no_name_of_a_column_that_all_predictions_have(name):
    with pytest.raises(TableError, match=f"cannot be called '{name}'"):
        TableModel.fit(table(np.linspace(0, 1, 40)).rename(columns={"y": name}), name, options=OPTIONS)

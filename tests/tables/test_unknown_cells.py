"""Rows with cells that say nothing: their intervals widen to what is unknown, and flags say why."""

import json

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from vmg.estimators import TableModel
from vmg.estimators.table_estimator import split_flags, tabulate_numbers
from vmg.prediction import ClassPrediction, MixturePrediction, class_mixture
from vmg.prediction.student import StudentPrediction
from vmg.tables import TableError
from vmg.tables.inputs import TableInputs

OPTIONS = {"hidden_layer_sizes": (20,), "n_members": 4, "max_iter": 120, "experts": "networks", "random_state": 0}


def table(n=300, seed=0):
    """y = 5a + effect of c + noise; a is in [-2, 2], so that y spreads by some 16 either side where a is unknown."""
    rng = np.random.default_rng(seed)
    a, c = rng.uniform(-2, 2, n), rng.choice(["low", "mid", "high"], n)
    effect = pd.Series(c).map({"low": -6.0, "mid": 0.0, "high": 6.0}).to_numpy()
    return pd.DataFrame({"a": a, "b": rng.normal(size=n), "c": c, "y": 5 * a + effect + 0.3 * rng.normal(size=n)})


@pytest.fixture(scope="module")
def model():
    return TableModel.fit(table(), "y", options=OPTIONS)


@pytest.fixture(scope="module")
def classifier():
    frame = table()
    return TableModel.fit(frame.assign(y=np.where(frame["y"] > 0, "up", "down")), "y", options=OPTIONS)


def widths(found):
    return (found["y_upper"] - found["y_lower"]).to_numpy()


def test_a_value_missing_at_prediction_only_widens_the_interval_to_what_is_unknown(model):
    new = table(200, seed=1)
    known, blind = model.predict_frame(new), model.predict_frame(new.assign(a=np.nan))
    inside = (new["y"] >= blind["y_lower"]) & (new["y"] <= blind["y_upper"])
    assert 0.8 <= inside.mean() <= 1.0
    assert np.median(widths(blind)) > 0.7 * 5 * 4 * 0.9  # a is uniform over 4, with slope 5
    assert np.median(widths(known)) < 6
    assert (blind["y_ignorance"] ** 2 > 0.9 * blind["y_std"] ** 2).all()
    assert all("missing:a" in split_flags(text) for text in blind["flags"])
    assert not any("missing" in text for text in known["flags"])


def test_an_unseen_category_is_less_certain_than_any_seen_one(model):
    new = table(100, seed=2)
    known, strange = model.predict_frame(new), model.predict_frame(new.assign(c="other"))
    assert (strange["y_ignorance"] > known["y_ignorance"]).all()
    assert strange["y_ignorance"].median() > 3  # effects are -6, 0 and 6
    assert all("unseen:c" in split_flags(text) for text in strange["flags"])


def test_unknown_cells_make_classes_doubtful(classifier):
    new = table(100, seed=3)
    known, blind = (classifier.predict_frame(frame) for frame in (new, new.assign(a=None, c="other")))
    assert blind["y_ignorance"].median() > 5 * known["y_ignorance"].median()
    assert blind["y_entropy"].median() > 0.5
    assert set(blind["flags"]) <= {"missing:a;unseen:c", "missing:a;outside:b;unseen:c"}


def test_what_cannot_be_read_is_missing(model):
    found = model.predict_frame(table(5).astype({"a": object}).assign(a=["1.5", "x", None, "2 km", "1,5"]))
    assert [("missing:a" in text) for text in found["flags"]] == [False, True, True, True, True]


def test_values_that_were_missing_in_training_too_are_drawn_and_not_the_median(model):
    frame = table(400)
    holes = frame.assign(a=frame["a"].where(np.arange(400) % 10 != 0))
    with_holes = TableModel.fit(holes, "y", options=OPTIONS)
    blind = with_holes.predict_frame(table(100, seed=4).assign(a=None))
    assert np.median(widths(blind)) > 10


def test_a_frame_without_unknown_cells_is_predicted_by_the_estimator_alone(model):
    frame = table(20, seed=5)
    found = model.pred_dist(frame)
    assert isinstance(found, StudentPrediction)
    np.testing.assert_array_equal(found.mean, model.estimator.pred_dist(frame[model.encoder.column_names]).mean)
    np.testing.assert_array_equal(found.mean, model.filled_dist(frame).mean)


def test_rows_do_not_change_with_the_rows_beside_them(model, classifier):
    frame = table(150, seed=6)
    frame.loc[::3, "a"] = np.nan
    frame.loc[1::3, "c"] = "other"
    for one in (model, classifier):
        whole = one.predict_frame(frame)
        pd.testing.assert_frame_equal(one.predict_frame(frame.iloc[:7]), whole.iloc[:7], rtol=1e-9)


def test_few_rows_with_unknown_cells_at_once_where_there_are_many_features(model, monkeypatch):
    frame = table(40, seed=6).assign(a=np.nan)
    expected, sizes = model.predict_frame(frame), []
    n_features = len(model.encoder.feature_names)
    monkeypatch.setattr("vmg.tables.inputs.MIXED_CELLS", 2 * 128 * n_features)
    mixed = TableInputs.distribution
    monkeypatch.setattr(TableInputs, "distribution", lambda *given: sizes.append(len(given[1])) or mixed(*given))
    pd.testing.assert_frame_equal(model.predict_frame(frame), expected, rtol=1e-9)
    assert max(sizes) == 2 and sum(sizes) == 40


# -- the mixture itself ----------------------------------------------------------------------------------------------


def test_a_mixture_weighs_the_distributions_of_its_parts():
    """Two rows, the second a mixture of three Student t's; ``tests/prediction/test_base.py`` has the rest."""
    centres, weights = np.array([[-3.0], [0.0], [2.0]]), np.array([0.2, 0.5, 0.3])
    one, df = np.ones((2, 1)), np.array([6.0])
    whole = StudentPrediction(0.1 * one, 0.5 * one, 0.4 * one, df, lambda: np.zeros((1, 2, 1)))
    apart = StudentPrediction(
        centres, np.full((3, 1), 0.6), np.full((3, 1), 0.8), df, lambda: 0.8 * np.eye(3)[..., None]
    )
    found, parts = MixturePrediction(whole, apart, np.array([1]), weights[None]), stats.t(6, centres[:, 0], 1.0)
    y = np.array([0.3, 0.7])
    assert found.log_prob(y)[1] == pytest.approx(np.log((parts.pdf(0.7) * weights).sum()))
    assert found.cdf(y)[1] == pytest.approx((parts.cdf(0.7) * weights).sum())
    for read in ("mean", "std", "aleatoric_std"):  # the first row is untouched
        assert getattr(found, read)[0] == getattr(whole, read)[0]


def test_draws_of_classes_go_over_candidates_by_their_weights():
    rng = np.random.default_rng(0)
    samples = rng.dirichlet([1, 1], (40, 1))  # [S, N, C]
    parts = np.zeros((40, 2, 2))
    parts[:, 0], parts[:, 1] = [1, 0], [0, 1]
    found = class_mixture(
        ClassPrediction(samples, np.array([0, 1])),
        ClassPrediction(parts, np.array([0, 1])),
        np.array([0]),
        np.array([[0.25, 0.75]]),
    )
    np.testing.assert_allclose(found.probabilities, [[0.25, 0.75]])
    assert found.mutual_information[0] == pytest.approx(-(0.25 * np.log(0.25) + 0.75 * np.log(0.75)))


# -- outside, and far outside ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [np.inf, -np.inf, 1e308, -1e308, 1e200, 3e4])
def test_no_input_gives_a_number_that_is_not_finite_without_a_flag(model, classifier, value):
    frame = table(3).astype({"a": float})
    frame.loc[1, "a"] = value
    for one in (model, classifier):
        found = one.predict_frame(frame)
        assert split_flags(found["flags"].iloc[1]) == ["outside:a"]
        numbers = found.select_dtypes("number").to_numpy()
        assert np.isfinite(numbers).all()
        assert found["familiarity"].iloc[1] < 0.01
    found = model.predict_frame(frame)
    assert found["y_ignorance"].iloc[1] > 10 * found["y_ignorance"].iloc[0]


def test_numbers_that_leave_the_range_of_floating_point_are_flagged(model, monkeypatch):
    def overflow(*arguments):
        return tabulate_numbers(*arguments).assign(std=np.inf)

    monkeypatch.setattr("vmg.estimators.table_estimator.tabulate_numbers", overflow)
    assert all("not-finite" in split_flags(text) for text in model.predict_frame(table(3))["flags"])


def test_what_is_outside_can_be_refused_or_clipped(model):
    frame = table(4).assign(a=[0.0, 50.0, 0.5, -50.0])
    with pytest.raises(TableError, match="inside the range of the training rows; they are outside in 'a' in 2 rows"):
        model.predict_frame(frame, outside="error")
    found, clipped = model.predict_frame(frame), model.predict_frame(frame, outside="clip")
    ends = model.predict_frame(frame.assign(a=[0.0, table()["a"].max(), 0.5, table()["a"].min()]))
    np.testing.assert_allclose(clipped["y"], ends["y"])
    assert clipped["flags"].tolist() == found["flags"].tolist()
    assert found["y"].iloc[1] > clipped["y"].iloc[1] + 20
    assert model.predict_frame(frame.iloc[[0, 2]], outside="error")["flags"].tolist() == ["", ""]


def test_familiarity_falls_with_distance_and_never_rises(model):
    ways = np.concatenate([np.linspace(0, 4, 20), np.geomspace(5, 1e6, 20)])
    for column, start in (("a", 0.0), ("b", 0.5)):
        rows = pd.DataFrame({"a": 0.0, "b": 0.0, "c": "mid"}, index=range(len(ways))).assign(**{column: start + ways})
        outside = rows[column] > table()[column].max()
        found = model.predict_frame(rows)["familiarity"].to_numpy()
        assert found[0] == 1 and (np.diff(found[outside]) < 0).all() and found[-1] < 1e-4
        assert ((found > 0) & (found <= 1)).all()
    typical = model.predict_frame(table(300, seed=9))["familiarity"]
    assert (typical > 0.5).mean() > 0.9


def test_flags_in_every_kind_of_output(model, tmp_path, monkeypatch, capfd):
    from vmg.cli.app import run
    from vmg.tables import read_table

    monkeypatch.chdir(tmp_path)
    model.save("m.vmg")
    table(4).assign(a=["0.5", "", "inf", "1e308"], c=["mid", "mid", "low", "new"]).to_csv("new.csv", index=False)
    expected = [[], ["missing:a"], ["outside:a"], ["outside:a", "unseen:c"]]
    for name in ("p.csv", "p.parquet"):
        assert run(["predict", "m.vmg", "new.csv", "-o", name, "-q"]) == 0
        found = read_table(name).frame
        assert [split_flags(text if isinstance(text, str) else "") for text in found["flags"]] == expected
        assert np.isfinite(found.select_dtypes("number").to_numpy()).all()
        assert "familiarity" in found
    capfd.readouterr()
    assert run(["predict", "m.vmg", "new.csv", "--json"]) == 0
    rows = json.loads(capfd.readouterr().out)["rows"]
    assert [row["flags"] for row in rows] == expected
    assert run(["predict", "m.vmg", "new.csv", "--outside", "error", "-q"]) == 2
    assert "outside in 'a' in 2 rows" in capfd.readouterr().err

"""Dates beyond those of the training rows: a trend is used where later rows show one, and ignorance grows with time."""

import json

import numpy as np
import pandas as pd
import pytest

from vmg.estimators import TableModel, TableRegressor
from vmg.tables import TableEncoder
from vmg.tables.encoder import judge_trend

OPTIONS = {"hidden_layer_sizes": (30,), "n_members": 4, "max_iter": 150, "random_state": 0}
DAYS = np.arange(0, 4 * 365, 2)


def series(kind, seed=0):
    """Four years; ``season`` has no trend, ``curved`` grows faster and faster."""
    rng = np.random.default_rng(seed)
    season = 5 * np.sin(2 * np.pi * DAYS / 365.25)
    level = {
        "season": season,
        "curved": season + 0.02 * DAYS + 8e-6 * DAYS.astype(float) ** 2,
        "straight": season + 0.02 * DAYS,
    }[kind]
    when = pd.Timestamp("2015-01-01") + pd.to_timedelta(DAYS, "D")
    return pd.DataFrame({"when": when.strftime("%Y-%m-%d"), "y": level + rng.normal(size=len(DAYS))})


def judge(frame):
    """The verdict on the trend, and the growth of errors in units of the target's spread for each day."""
    encoder = TableEncoder.fit(frame[["when"]])
    y = ((frame["y"] - frame["y"].mean()) / frame["y"].std()).to_numpy()[:, None]
    return judge_trend(encoder.transform(frame), encoder.feature_names.index("when: days"), y)


def test_a_trend_is_kept_only_where_later_rows_show_it():
    assert not judge(series("season"))[0]
    assert judge(series("season").iloc[:30])[0]  # few rows decide nothing
    trend, drift = judge(series("straight"))
    assert trend and drift[0] * 365 < 0.2
    trend, curved = judge(series("curved"))
    assert trend and curved[0] > 2 * drift[0]


def test_dates_leave_nothing_open_where_another_column_tells_the_target():
    frame = series("curved").iloc[:160]
    target = (frame["y"] - frame["y"].mean()).to_numpy()[:, None] / frame["y"].std()
    encoder, _ = TableEncoder.fit(frame).with_target(frame, target, np.ones(1))
    assert encoder.columns[0].drift[0] * 365 < 1e-4


def test_each_output_drifts_in_its_own_units():
    frame = series("curved")
    y = np.column_stack([frame["y"], 1000 * frame["y"]])
    model = TableRegressor(n_members=2, max_iter=5, random_state=0).fit(frame[["when"]], y)
    [column] = model.inputs_.encoder.columns
    assert column.drift[0] > 0 and column.drift[1] == pytest.approx(1000 * column.drift[0])


@pytest.mark.parametrize("kind", ["season", "curved"])
def test_a_year_that_no_row_is_of_is_covered_and_better_known_than_by_the_base_rate(kind):
    frame = series(kind)
    early = DAYS < 3 * 365
    model = TableModel.fit(frame[early], "y", options=OPTIONS)
    scores, base = model.evaluate(frame[~early]), model.evaluate_base_rate(frame[~early])
    assert scores["coverage"] >= 0.8 and scores["rmse"] < base["rmse"]
    predicted, inside = model.predict_frame(frame[~early]), model.predict_frame(frame[early])
    assert all("outside:when" in text for text in predicted["flags"])
    assert predicted["familiarity"].iloc[-1] < 0.3 < inside["familiarity"].min()
    width = (predicted["y_upper"] - predicted["y_lower"]).to_numpy()
    assert width[-20:].mean() > width[:20].mean() > 0.9 * (inside["y_upper"] - inside["y_lower"]).mean()
    assert any("only its place in the year" in note for note in model.notes) is (kind == "season")


def test_a_model_keeps_trend_and_drift_in_its_file():
    frame = series("curved")
    y = (frame["y"] - frame["y"].mean()).to_numpy()[:, None]
    encoder, features = TableEncoder.fit(frame[["when"]]).with_target(frame, y / y.std(), np.array([y.std()]))
    assert encoder.columns[0].trend and encoder.columns[0].drift[0] > 0
    again = TableEncoder.from_document(json.loads(json.dumps(encoder.to_document())))
    assert again == encoder
    np.testing.assert_array_equal(again.transform(frame), features)
    later = pd.DataFrame({"when": ["2015-01-01", "2025-01-01", None]})
    extra = encoder.extra_std(later)[:, 0]
    assert extra[0] == extra[2] == 0 < extra[1]
    assert encoder.extra_std(frame) is None

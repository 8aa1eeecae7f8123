"""``model.plot``: pictures on Matplotlib's axes, given or new."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from sklearn.exceptions import NotFittedError

from vmg import TableClassifier, TableRegressor
from vmg.estimators import TableModel
from vmg.tables import TableError

TINY = {"hidden_layer_sizes": (8,), "n_members": 4, "max_iter": 20, "random_state": 0, "experts": "networks"}


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def test_pictures_are_drawn_on_the_axes_that_are_given(regression):
    model, frame = regression
    figure = Figure(figsize=(9, 7))
    axes = figure.subplots(2, 2).ravel()
    assert model.plot.intervals(frame, ax=axes[0]) is axes[0]
    assert model.plot.calibration(frame, ax=axes[1]) is axes[1]
    assert model.plot.effect(frame, "district", ax=axes[2]) is axes[2]
    assert model.plot.ignorance(frame, ("area, m²", "rooms"), ax=axes[3]) is axes[3]
    assert figure.get_size_inches().tolist() == [9, 7] and all(ax.has_data() for ax in axes)
    assert axes[2].get_ylabel() == "district" and axes[3].get_xlabel() == "area, m²"
    assert model.plot.effect(frame, "rooms").get_xlabel() == "rooms"  # on new axes


def test_intervals_are_those_of_the_prediction(line):
    model, frame = line
    ends = model.plot.intervals(frame[:20]).lines[0].get_ydata().reshape(-1, 3)[:, :2]
    expected = model.pred_dist(frame[:20]).interval(0.9)
    np.testing.assert_allclose(np.sort(ends, axis=0), np.sort(expected, axis=0))


def test_the_calibration_curve_counts_truths_below_each_quantile(line):
    model, frame = line
    curve = model.plot.calibration(frame).lines[1]
    prediction, y = model.pred_dist(frame), frame["y"].to_numpy()
    for level in (0.1, 0.5, 0.9):
        shown = np.interp(level, *curve.get_data())
        assert shown == pytest.approx((y <= prediction.quantile(level)).mean(), abs=0.01)
    with pytest.raises(TableError, match="whose target 'y' is known"):
        model.plot.calibration(frame.drop(columns="y"))


def test_ignorance_is_least_where_rows_are():
    X = np.random.default_rng(0).normal(size=(80, 3))
    ax = TableRegressor(**TINY).fit(X, X[:, 0] + X[:, 1]).plot.ignorance(X, ("x0", "x1"))
    mesh = ax.collections[0].get_array().reshape(60, 60)
    assert mesh[20:40, 20:40].mean() < 0.7 * mesh[[0, 0, -1, -1], [0, -1, 0, -1]].mean()


def test_estimators_draw_arrays_and_classes():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 2))
    frame = pd.DataFrame({"y": X[:, 0], "kind": rng.choice(["u", "v"], 80)})
    for rows, y in ((X, X[:, 0] > 0), (X, np.where(X[:, 0] > 0, "a", "b").astype(object)), (frame, X[:, 0] > 0)):
        model = TableClassifier(**TINY).fit(rows, y)
        assert model.plot.calibration(rows, y).has_data()
    assert model.plot.effect(frame, "y").get_ylabel() == "probability"
    with pytest.raises(TableError, match="two columns of numbers"):
        model.plot.ignorance(frame, ("y", "kind"))
    with pytest.raises(TableError, match="of numbers; the task is classification"):
        model.plot.intervals(frame)
    with pytest.raises(NotFittedError):
        TableRegressor().plot.intervals(X)


def test_a_frame_with_its_target(binary):
    model, frame = binary
    assert isinstance(model, TableModel) and model.plot.calibration(frame).has_data()

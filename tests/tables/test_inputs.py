"""Training rows that a model keeps, against a loop over all pairs, and columns whose cells are missing in them too."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from vmg.estimators import TableModel
from vmg.estimators.table_estimator import flag_texts
from vmg.tables.encoder import TableEncoder
from vmg.tables.inputs import LEARNED_ROWS, ROWS_AT_ONCE, ReferenceRows, draw_shares, find_candidates, keep_rows

OPTIONS = {"hidden_layer_sizes": (20,), "n_members": 4, "max_iter": 120, "random_state": 0}
WIDTHS = np.array([1, 2, 1])
SCALES = np.array([2.0, 0.5, 1e-3, np.inf])  # the last feature does not count


def make(n_rows=60, shift=1e6):
    rng = np.random.default_rng(0)
    features = shift * np.array([1.0, 0, 0, 0]) + rng.normal(size=(n_rows, 4)) * np.where(np.isinf(SCALES), 5, SCALES)
    given, digests = np.ones((n_rows, 3), dtype=bool), np.arange(n_rows)
    encoder = SimpleNamespace(feature_scales=SCALES, widths=WIDTHS)
    return ReferenceRows.sample(encoder, features, given, digests), features


def slow_distance(row, unknown, features):
    weight = np.repeat(~unknown, WIDTHS)[:3]
    squared = (weight * ((features[:, :3] - row[:3]) / SCALES[:3]) ** 2).sum(1) * (3 / max(weight.sum(), 1))
    return np.sqrt(squared.min())


@pytest.mark.parametrize("some_unknown", [False, True])
def test_familiarity_is_by_the_nearest_training_row(some_unknown):
    reference, features = make()
    rng = np.random.default_rng(1)
    rows = features[rng.integers(len(features), size=ROWS_AT_ONCE + 40)] + 3 * rng.normal(size=(ROWS_AT_ONCE + 40, 4))
    rows[0], rows[1] = features[5], features[5] + 1e5
    unknown = (rng.random((len(rows), 3)) < 0.3) & some_unknown
    distance = np.array([slow_distance(row, cells, features) for row, cells in zip(rows, unknown, strict=True)])
    expected = np.minimum(1, reference.typical / np.maximum(distance, reference.typical))
    np.testing.assert_allclose(reference.familiarity(rows, unknown), expected, rtol=1e-9)


def test_what_is_typical_is_the_distance_to_another_row():
    reference, features = make()
    apart = [slow_distance(row, np.zeros(3, bool), np.delete(features, k, 0)) for k, row in enumerate(features)]
    assert reference.typical == pytest.approx(np.quantile(apart, 0.9), rel=1e-9)
    assert make(1)[0].typical == 1.0


def test_flags_of_a_row_come_in_the_order_of_the_columns():
    yes, no = np.array([True, False, True, False]), np.zeros(4, dtype=bool)
    marks = [{"missing": yes, "outside": no}, {"unseen": np.array([False, True, True, False])}, {"missing": no}]
    found = flag_texts(["a;b", "c", "d"], marks, no)
    assert found.tolist() == ["missing:a b", "unseen:c", "missing:a b;unseen:c", ""]


def test_rows_of_many_columns_are_not_flagged_by_chance():
    rng = np.random.default_rng(0)
    frame, rows = (pd.DataFrame(rng.normal(size=(200, 500))).rename(columns=str) for _ in range(2))
    rows.loc[0, "7"] = 30.0
    encoder = TableEncoder.fit(frame)
    flags = flag_texts(encoder.column_names, encoder.marks(rows), np.zeros(len(rows), dtype=bool))
    assert "outside:7" in flags[0] and (flags != "").mean() < 0.1
    few = TableEncoder.fit(frame[["7"]])
    near = pd.DataFrame({"7": [0.0, frame["7"].max() + 0.01]})
    assert flag_texts(["7"], few.marks(near), np.zeros(2, dtype=bool)).tolist() == ["", "outside:7"]


def claims(n=400, seed=0):
    """Days since the last claim; who has none has no such number, and pays much less."""
    rng = np.random.default_rng(seed)
    days = np.where(rng.random(n) < 0.3, np.nan, rng.uniform(0, 10, n))
    other = rng.normal(size=n)
    paid = np.where(np.isnan(days), -20.0, 20 - days) + other + 0.3 * rng.normal(size=n)
    return pd.DataFrame({"days": days, "other": other, "city": rng.choice(["a", "b"], n), "paid": paid})


def test_a_missing_cell_that_means_something_is_learned():
    model = TableModel.fit(claims(800), "paid", options=OPTIONS)
    new = claims(100, seed=1)
    none = new["days"].isna().to_numpy()
    found = model.predict_frame(new)
    assert (found["paid"][none] < -5).all() and (found["paid"][~none] > 5).all()
    scores = model.pred_dist(new[none]).log_prob(new["paid"][none])
    assert np.median(scores) > -2  # a mixture over all days in place of it gives -20
    assert all("missing:days" in text for text in found["flags"][none])


@pytest.fixture
def kept():
    frame = claims()
    encoder = TableEncoder.fit(frame.drop(columns="paid"))
    return encoder, keep_rows(encoder, frame, frame["paid"].to_numpy()), frame


def test_shares_of_draws(kept):
    encoder, _, frame = kept
    rows = pd.DataFrame({"days": [1.0, np.nan, 2.0], "other": [np.nan, 0.0, 0.0], "city": ["a", "b", "c"]})
    shares = draw_shares(encoder.columns, encoder.marks(rows))
    drawn = LEARNED_ROWS / (LEARNED_ROWS + frame["days"].isna().sum())
    np.testing.assert_allclose(shares, [[0, 1, 0], [drawn, 0, 0], [0, 0, 1]])


def test_candidates_are_draws_and_the_row_as_it_is_marked(kept):
    encoder, reference, _ = kept
    rows = pd.DataFrame({"days": [np.nan, np.nan], "other": [0.5, np.nan], "city": ["a", "b"]})
    features, shares = encoder.transform(rows), draw_shares(encoder.columns, encoder.marks(rows))
    found = find_candidates(features, shares, reference)
    np.testing.assert_allclose(found.weights.sum(1), 1)
    mark = encoder.feature_names.index("days: missing")
    for row in range(2):
        marked = found.features[row, :, mark] == 1
        assert found.weights[row, marked].sum() == pytest.approx(1 - shares[row, 0])
    as_marked = found.features[0][(found.features[0, :, mark] == 1) & (found.weights[0] > 0)]
    np.testing.assert_array_equal(as_marked, features[:1])  # one candidate: nothing of it is drawn
    other = found.features[1][found.weights[1] > 0][:, encoder.feature_names.index("other")]
    assert len(np.unique(other)) > 10  # never missing in training, so drawn in both cases

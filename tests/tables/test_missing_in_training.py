"""Columns whose cells are missing in training rows too: what that means is learned, as far as rows show it."""

import numpy as np
import pandas as pd
import pytest

from vmg.estimators import TableModel
from vmg.estimators.table_inputs import keep_rows
from vmg.tables.encoder import TableEncoder
from vmg.tables.missing import LEARNED_ROWS, draw_shares, find_candidates

OPTIONS = {"hidden_layer_sizes": (20,), "n_members": 4, "max_iter": 120, "random_state": 0}


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
    shares = draw_shares(encoder.columns, encoder.marks(rows), 3)
    drawn = LEARNED_ROWS / (LEARNED_ROWS + frame["days"].isna().sum())
    np.testing.assert_allclose(shares, [[0, 1, 0], [drawn, 0, 0], [0, 0, 1]])


def test_candidates_are_draws_and_the_row_as_it_is_marked(kept):
    encoder, reference, _ = kept
    rows = pd.DataFrame({"days": [np.nan, np.nan], "other": [0.5, np.nan], "city": ["a", "b"]})
    features, shares = encoder.transform(rows), draw_shares(encoder.columns, encoder.marks(rows), 2)
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

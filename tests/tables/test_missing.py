"""Distances to the training rows that a model keeps, against a loop over all pairs."""

import numpy as np
import pandas as pd
import pytest

from vmg.estimators.table_inputs import flag_texts
from vmg.tables.encoder import TableEncoder
from vmg.tables.missing import ROWS_AT_ONCE, ReferenceRows

WIDTHS = np.array([1, 2, 1])
SCALES = np.array([2.0, 0.5, 1e-3, np.inf])  # the last feature does not count


def make(n_rows=60, shift=1e6):
    rng = np.random.default_rng(0)
    features = shift * np.array([1.0, 0, 0, 0]) + rng.normal(size=(n_rows, 4)) * np.where(np.isinf(SCALES), 5, SCALES)
    given, digests = np.ones((n_rows, 3), dtype=bool), np.arange(n_rows)
    return ReferenceRows.sample(features, given, SCALES, WIDTHS, digests, seed=0), features


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
    found = flag_texts(["a;b", "c", "d"], marks, 4)
    assert found.tolist() == ["missing:a b", "unseen:c", "missing:a b;unseen:c", ""]


def test_rows_of_many_columns_are_not_flagged_by_chance():
    rng = np.random.default_rng(0)
    frame, rows = (pd.DataFrame(rng.normal(size=(200, 500))).rename(columns=str) for _ in range(2))
    rows.loc[0, "7"] = 30.0
    encoder = TableEncoder.fit(frame)
    flags = flag_texts(encoder.column_names, encoder.marks(rows), len(rows))
    assert "outside:7" in flags[0] and (flags != "").mean() < 0.1
    few = TableEncoder.fit(frame[["7"]])
    near = pd.DataFrame({"7": [0.0, frame["7"].max() + 0.01]})
    assert flag_texts(["7"], few.marks(near), 2).tolist() == ["", "outside:7"]

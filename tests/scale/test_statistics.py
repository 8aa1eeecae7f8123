import numpy as np
import pandas as pd
from parquet_parts import make_frame

from vmg.scale.statistics import RowSample, TableCounts, count_texts, fit_encoder
from vmg.tables import TableEncoder


def test_levels_and_holes_are_counted():
    assert count_texts(pd.Series([1.0, np.nan, np.inf])) == {"": 2}
    counts = TableCounts()
    for cells in (["a", " a ", None, "b", "", "a"], ["b", None]):
        counts.add(pd.DataFrame({"c": cells}))
    assert counts == TableCounts(8, {"c": {"a": 3, "b": 2, "": 3}})


def test_many_levels_are_bounded(monkeypatch):
    monkeypatch.setattr("vmg.scale.statistics.KEPT_LEVELS", 10)
    counts = TableCounts()
    counts.add(pd.DataFrame({"c": [f"rare {k}" for k in range(100)] + ["often"] * 50 + [None]}))
    assert len(counts.columns["c"]) == 11 and counts.columns["c"]["often"] == 50 and counts.columns["c"][""] == 1


def test_the_encoder_of_a_stream_is_that_of_the_whole_table():
    frame = make_frame(600).drop(columns=["y", "key"]).assign(rare=["seldom"] * 3 + ["often", "mostly"] * 298 + [None])
    counts = TableCounts()
    for start in range(0, 600, 70):
        counts.add(frame[start : start + 70])
    assert fit_encoder(frame, counts) == TableEncoder.fit(frame)
    again = TableCounts()
    again.merge(**vars(counts))
    assert again == counts


def test_counts_are_those_of_all_rows_where_the_sample_has_few():
    frame = pd.DataFrame({"c": ["a"] * 50 + ["b"] * 50 + ["c"] * 2, "x": np.r_[np.nan, np.arange(101.0)]})
    counts = TableCounts()
    counts.add(frame)
    found = {column.name: column for column in fit_encoder(frame[1:90], counts).columns}
    assert found["c"].levels == ["a", "b", "c"] and found["x"].n_missing == 1


def test_a_sample_is_fair_and_does_not_depend_on_who_reads_what():
    frames = [pd.DataFrame({"k": np.arange(100) + 100 * piece}) for piece in range(6)]

    def sample(pieces, size=50, seed=3):
        found = RowSample(size, seed)
        for piece in pieces:
            for start in range(0, 100, 30):
                found.add(frames[piece][start : start + 30], piece)
        return found

    whole = sample(range(6)).rows()
    first, second = sample([0, 2, 4]), sample([1, 3, 5])
    first.merge(second.to_bytes())
    pd.testing.assert_frame_equal(first.rows(), whole)
    assert len(whole) == 50 and whole["k"].is_unique
    counts = np.zeros(600)
    for seed in range(400):
        counts[sample(range(6), seed=seed).rows()["k"]] += 1
    expected = 400 * 50 / 600
    chi_squared = np.square(counts - expected).sum() / expected
    assert abs(chi_squared - 599) < 4 * np.sqrt(2 * 599)


def test_few_rows_are_all_in_the_sample():
    found = RowSample(50, 0)
    found.add(pd.DataFrame({"k": range(20)}), 0)
    assert sorted(found.rows()["k"]) == list(range(20))

import numpy as np
import pandas as pd
import pytest
from parquet_parts import make_frame

from vmg.scale.statistics import ColumnStatistics, Moments, RowSample, TableStatistics, fit_encoder, fit_scaling
from vmg.tables import TableEncoder


def test_moments_of_pieces_are_those_of_the_whole():
    values = np.random.default_rng(0).normal(1e6, 1e-2, (1000, 3))  # a sum of squares would keep no digit
    found = Moments.of(values[:100]).plus(Moments.of(values[100:101])).plus(Moments.of(values[101:]))
    assert found.n == 1000
    np.testing.assert_allclose(found.mean, values.mean(0), rtol=1e-14)
    np.testing.assert_allclose(found.scale, values.std(0), rtol=1e-6)
    np.testing.assert_array_equal(found.low, values.min(0))
    np.testing.assert_array_equal(found.high, values.max(0))


def test_levels_and_holes_are_counted():
    column = pd.Series(["a", " a ", None, "b", "", "a"], name="c")
    found = ColumnStatistics.of(column).plus(ColumnStatistics.of(pd.Series(["b", None])))
    assert found.levels == {"a": 3, "b": 2} and found.n_missing == 3 and found.n_rows == 8 and found.complete


def test_many_levels_are_bounded(monkeypatch):
    monkeypatch.setattr("vmg.scale.statistics.KEPT_LEVELS", 10)
    column = pd.Series([f"rare {k}" for k in range(100)] + ["often"] * 50)
    found = ColumnStatistics.of(column)
    assert not found.complete and len(found.levels) == 10 and found.levels["often"] == 50


def test_numbers_with_holes_filled_have_these_moments():
    values = pd.Series([1.0, np.nan, 4.0, np.inf, 7.0])
    mean, scale = ColumnStatistics.of(values).filled(2.0)
    expected = np.array([1, 2, 4, 2, 7.0])
    assert mean == pytest.approx(expected.mean()) and scale == pytest.approx(expected.std())


def test_encoder_and_scaling_of_a_stream_are_those_of_the_whole_table():
    frame = make_frame(600).drop(columns=["y", "key"]).assign(rare=["seldom"] * 3 + ["often", "mostly"] * 298 + [None])
    statistics = TableStatistics()
    for start in range(0, 600, 70):
        statistics.add(frame[start : start + 70])
    whole = TableEncoder.fit(frame)
    found = fit_encoder(frame, statistics)
    assert found == whole
    scaling, encoded = fit_scaling(found, found.transform(frame)[:50], statistics), whole.transform(frame)
    np.testing.assert_allclose(scaling.mean, encoded.mean(0), rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(scaling.scale, encoded.std(0), rtol=1e-12)


def test_counts_are_those_of_all_rows_where_the_sample_has_few():
    frame = pd.DataFrame({"c": ["a"] * 50 + ["b"] * 50 + ["c"] * 2, "x": np.r_[np.nan, np.arange(101.0)]})
    statistics = TableStatistics()
    statistics.add(frame)
    found = {column.name: column for column in fit_encoder(frame[1:90], statistics).columns}
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
    first.merge(second.to_document())
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

"""Cells are read once, whatever asks for them, and long ones cost no more than their length."""

import sys
import time

import numpy as np
import pandas as pd
import pytest

from vmg.estimators.table_model import prepare_table
from vmg.review.remarks import table_remarks
from vmg.tables import TableEncoder
from vmg.tables.cells import LONGEST_WORD, Cells, CellTable, row_hashes, to_texts
from vmg.tables.columns import TableChoices


def mixed(n=300, seed=0):
    """Texts of every kind: numbers with units, signs and thousands, dates, times, words and holes."""
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "way": [f"{value:.1f} km" for value in rng.uniform(0, 9, n)],
            "income": [f"{value:,.0f}" for value in rng.uniform(1e4, 9e4, n)],
            "day": (np.datetime64("2020-01-01") + rng.integers(0, 300, n)).astype(str),
            "hour": [f"{hour}:30" for hour in rng.integers(0, 24, n)],
            "city": np.where(rng.random(n) < 0.1, None, rng.choice(["Rome", "Oslo", "Lima"], n)),
        }
    )


def reading_calls(work):
    """How often a function of the readers of single texts is called, by its name."""
    counts = {}

    def profile(frame, event, argument):
        if event == "call" and frame.f_code.co_name in ("_text", "_split_mark", "_hours", "_read_far"):
            counts[frame.f_code.co_name] = counts.get(frame.f_code.co_name, 0) + 1

    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(None)
    return counts


@pytest.mark.parametrize("copies", [1, 4])
def test_each_different_text_is_read_once_however_often_it_is_asked_for(copies):
    frame = pd.concat([mixed()] * copies, ignore_index=True)

    def work():
        table = CellTable(frame, training=True)
        encoder = TableEncoder.fit(table)
        encoder.with_target(table, np.zeros((len(frame), 1)))
        encoder.transform(table), encoder.marks(table), table_remarks(encoder, table)

    distinct = frame.nunique()
    calls = reading_calls(work)
    assert calls["_text"] == distinct.sum()
    assert calls["_hours"] == distinct["hour"]
    assert calls["_split_mark"] <= distinct[["way", "day", "hour"]].sum()  # thousands are read all at once
    assert "_read_far" not in calls


def test_levels_and_codes():
    cells = Cells(pd.Series([" a", "b", "a ", None, "", "b"], name="c"))
    assert cells.levels.tolist() == ["a", "b"] and cells.codes.tolist() == [0, 1, 0, -1, -1, 1]
    assert cells.level_counts == {"a": 2, "b": 2}
    assert cells.missing.tolist() == [False, False, False, True, True, False]
    assert cells.texts.tolist() == ["a", "b", "a", None, None, "b"]


def test_texts_do_not_change_with_holes_in_a_column():
    assert to_texts(pd.Series([1, 2])).tolist() == ["1", "2"]
    assert to_texts(pd.Series([1, None])).tolist() == ["1", None]
    assert to_texts(pd.Series([" a ", "", None, 1.5], dtype=object)).tolist() == ["a", None, None, "1.5"]
    assert to_texts(pd.Series([1, True, 1.0, "1"], dtype=object)).tolist() == ["1", "True", "1", "1"]


def test_half_a_character_is_no_error():
    frame = pd.DataFrame({"c": ["\ud800x", "y"] * 10, "x": range(20)})
    assert TableEncoder.fit(frame).column_names == ["c", "x"]


@pytest.mark.parametrize("cell", ["1" * 200_000, "1 " * 100_000 + "x", "2020-01-01" * 20_000, "(" * 200_000])
def test_a_huge_cell_is_a_word_and_read_in_no_time(cell):
    frame = pd.DataFrame({"a": [cell, *(f"{k},5 km" for k in range(30))], "x": range(31), "y": np.arange(31) / 7})
    start = time.process_time()
    encoder = TableEncoder.fit(frame)
    encoder.transform(frame), table_remarks(encoder, frame)
    assert time.process_time() - start < 2
    assert encoder.columns[0].unreadable == [cell[:LONGEST_WORD]]
    assert all(len(sentence) < 300 for sentence in [*encoder.describe(), *prepare_table(frame, "y").notes])


@pytest.mark.parametrize("cells", [[1.0, 2.0, np.inf] * 10, ["1", "2", "inf"] * 10, ["1", "2", "1e999"] * 10])
def test_an_infinite_number_in_a_training_row_is_missing_and_reported(cells):
    frame = pd.DataFrame({"a": cells, "b": range(30)})
    encoder = TableEncoder.fit(frame, TableChoices(types={"a": "number"}))
    _, features = encoder.with_target(frame, np.zeros((30, 1)))
    assert features[:3, 0].tolist() == [1, 2, 1.5] and features[:3, 1].tolist() == [0, 0, 1]
    assert f"Column 'a': not numbers, so missing: '{cells[2]}'." in encoder.describe()
    assert encoder.marks(frame[2:3])[0] == {"missing": [False], "outside": [True]}  # in a row to predict it is far out


def test_rows_with_lists_beside_old_dates_have_a_digest():
    days = pd.Series(np.array(["0001-01-01", "2020-01-01"], dtype="datetime64[us]")).dt.tz_localize("UTC")
    frame = pd.DataFrame({"d": days.dt.tz_convert("Europe/Paris"), "a": [[1, 2], [3]]})  # objects of such dates crash
    assert row_hashes(frame) != row_hashes(frame.assign(a=[[1, 2], [4]]))
    assert row_hashes(frame) == row_hashes(frame[:1]) + row_hashes(frame[1:])

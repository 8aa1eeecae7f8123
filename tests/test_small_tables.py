"""The benchmark of small tables: its tables are as described, and it goes on where it was stopped."""

import json
from pathlib import Path

import numpy as np
import pytest

from vmg import TableRegressor


@pytest.fixture
def small_tables(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    import small_tables

    return small_tables


def test_tables_have_a_signal_of_about_one_and_new_rows_of_the_same_kind(small_tables):
    kinds = set()
    for number in range(small_tables.N_TABLES):
        X, y, new_X, new_y = small_tables.make_table(number, 400, 3)
        assert X.shape == new_X.shape and y.shape == new_y.shape == (400,)
        _, function = small_tables.FUNCTIONS[small_tables.kind_of(number)["function"]]
        assert 0.6 < function(new_X).std() < 1.5
        again = small_tables.make_table(number, 400, 3)
        assert np.array_equal(y, again[1]) and not np.array_equal(y, small_tables.make_table(number, 400, 4)[1])
        kinds.add(tuple(small_tables.kind_of(number).values()))
    assert len(kinds) == 30


def test_it_measures_resumes_and_shows(small_tables, monkeypatch, tmp_path):
    monkeypatch.setattr(small_tables, "N_TABLES", 2)
    monkeypatch.setattr(small_tables, "SETTING_TABLES", [1])
    quick = {
        name: lambda: TableRegressor((3,), n_members=2, max_iter=5, random_state=0) for name in ("default", "other")
    }
    monkeypatch.setattr(small_tables, "SETTINGS", quick)
    out = tmp_path / "small.jsonl"
    small_tables.run(out, 5, 10, set(quick), {12, 20})
    found = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(r["setting"], r["n"], r["table"]) for r in found] == [
        *[("default", n, table) for table in (0, 1) for n in (12, 20)],
        ("other", 20, 1),
    ]
    assert all(0 <= r["coverage_90"] <= 1 and r["width"] > 0 for r in found)
    out.write_text("".join(json.dumps(r) + "\n" for r in found[:-1]))
    small_tables.run(out, 5, 10, set(quick), {12, 20})
    again = [json.loads(line) for line in out.read_text().splitlines()]
    assert [{**r, "seconds": 0} for r in again] == [{**r, "seconds": 0} for r in found]
    assert "| other | 20 | 1 |" in small_tables.show(out, 5)

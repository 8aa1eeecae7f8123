import hashlib
import json
import tracemalloc
import zipfile

import numpy as np
import pytest

from vmg.cli.app import run
from vmg_paper.baselines import PBPRegressor
from vmg_paper.data import load_table, load_year, tables, year
from vmg_paper.data.year import convert_archive, open_converted


def make_archive(file, values, member="YearPredictionMSD.txt", ending="\n"):
    """An archive of the form of UCI's: one text, a whole year first, five decimals after."""
    lines = [",".join([str(int(row[0])), *(f"{value:.5f}" for value in row[1:])]) + ending for row in values]
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, "".join(lines))
    return file


@pytest.fixture
def values():
    random = np.random.default_rng(0)
    return np.column_stack([random.integers(1922, 2012, size=100), random.normal(0, 300, size=(100, 90)).round(5)])


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("chunk_rows", [1, 7, 100, 1000])
def test_archives_are_converted(values, tmp_path, chunk_rows, ending):
    archive = make_archive(tmp_path / "year.zip", values, ending=ending)
    convert_archive(archive, tmp_path / "values.npy", n_rows=100, chunk_rows=chunk_rows)
    X, y = open_converted(tmp_path / "values.npy", n_rows=100)
    np.testing.assert_array_equal(X, values[:, 1:].astype(np.float32))
    np.testing.assert_array_equal(y, values[:, 0])
    assert X.dtype == y.dtype == np.float32
    assert isinstance(X, np.memmap)
    assert not X.flags.writeable


def test_memory_does_not_grow_with_the_archive(values, tmp_path):
    peaks = []
    for repeats in (20, 60):
        archive = make_archive(tmp_path / "year.zip", np.tile(values, (repeats, 1)))
        tracemalloc.start()
        convert_archive(archive, tmp_path / "values.npy", n_rows=100 * repeats, chunk_rows=100)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0]


@pytest.mark.parametrize(
    ("n_rows", "n_columns", "member", "message"),
    [
        (99, 91, "YearPredictionMSD.txt", "could not broadcast"),
        (101, 91, "YearPredictionMSD.txt", "should hold 101 rows; got 100"),
        (100, 90, "YearPredictionMSD.txt", "could not broadcast"),
        (100, 91, "readme.txt", r"no item named 'YearPredictionMSD\.txt'"),
    ],
)
def test_another_archive_is_refused(values, tmp_path, n_rows, n_columns, member, message):
    archive = make_archive(tmp_path / "year.zip", values[:, :n_columns], member)
    with pytest.raises((ValueError, KeyError), match=message):
        convert_archive(archive, tmp_path / "values.npy", n_rows=n_rows)
    assert list(tmp_path.iterdir()) == [archive]


def test_a_converted_file_of_another_shape_is_refused(tmp_path):
    np.save(tmp_path / "values.npy", np.zeros((3, 91), dtype=np.float32))
    with pytest.raises(ValueError, match=r"shape \(515345, 91\); got float32, \(3, 91\)\. Delete it"):
        open_converted(tmp_path / "values.npy")


@pytest.fixture
def published_year(values, cache, server, monkeypatch):
    """A small archive of the same form at its public address, and nothing in the cache."""
    address, served = server
    archive = make_archive(served / "year.zip", values)
    monkeypatch.setattr(year, "URL", f"{address}/year.zip")
    monkeypatch.setattr(year, "SHA256", hashlib.sha256(archive.read_bytes()).hexdigest())
    monkeypatch.setattr(convert_archive, "__kwdefaults__", {"n_rows": 100, "chunk_rows": 32})
    monkeypatch.setattr(open_converted, "__defaults__", (100,))
    return archive


def test_year_is_downloaded_converted_once_and_loaded_as_a_table(published_year, cache):
    X, y = load_year()
    published_year.unlink()
    (cache / "year/yearpredictionmsd.zip").unlink()
    table = load_table("year")
    np.testing.assert_array_equal(table.X, X)
    np.testing.assert_array_equal(table.y, y)
    assert table.y.dtype == np.float64
    assert table.n_splits == 1


@pytest.mark.usefixtures("published_year")
def test_table1_runs_on_year_end_to_end(values, monkeypatch, tmp_path, capsys):
    """From the archive to the printed row, with the fixed split."""
    monkeypatch.setattr(tables, "N_ROWS", 100)
    monkeypatch.setattr(tables, "N_TRAIN", 90)
    out = tmp_path / "lines.jsonl"
    assert run(["reproduce", "table1", "--datasets", "year", "--methods", "pbp,table", "--out", str(out)]) == 0
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(line["dataset"], line["method"], line["split"]) for line in lines] == [
        ("year", "pbp", 0),
        ("year", "table", 0),
    ]
    pbp = PBPRegressor((100,), random_state=0).fit(values[:90, 1:].astype(np.float32), values[:90, 0])
    error = np.sqrt(np.mean((pbp.predict(values[90:, 1:]) - values[90:, 0]) ** 2))
    assert lines[0]["rmse"] == pytest.approx(error, rel=1e-4)
    assert "| year | pbp | 1 |" in capsys.readouterr().out

"""The standard train/test splits of the tables: regenerated, and as published."""

import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt

from vmg_paper.data.catalogue import ENTRIES, TableEntry, check_table_name
from vmg_paper.data.download import checked_numbers, download
from vmg_paper.data.year import N_ROWS, N_TRAIN

Split = tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]  # rows to train on, rows to test on


def standard_splits(name_or_n_rows: str | int, n_splits: int | None = None) -> list[Split]:
    """The splits everyone compares on: permutations drawn from seed 1, nine tenths of each to train on.

    Rows come in the order of the permutation, as in the published index files. The order is no part of the
    split, but a method that meets its data in order (online, or shuffled from a seed) will feel it slightly.

    Parameters
    ----------
    name_or_n_rows
        One of `TABLES`, or the number of rows of a table of one's own.
    n_splits
        How many; by default as many as the paper averages over: 5 for protein, 1 for year, 20 otherwise.
    """
    if isinstance(name_or_n_rows, str):
        check_table_name(name_or_n_rows)
        if name_or_n_rows == "year":
            return _year_splits(n_splits)
        entry = ENTRIES[name_or_n_rows]
        n_rows, default_n_splits = entry.n_rows, entry.n_splits
    else:
        n_rows, default_n_splits = name_or_n_rows, 20
    n_splits = default_n_splits if n_splits is None else n_splits
    if n_rows < 2:
        raise ValueError(f"a split needs at least 2 rows; got {n_rows}")
    if n_splits < 1:
        raise ValueError(f"n_splits must be at least 1; got {n_splits}")
    # Halves round up, as in the Python 2 that made the published files; one row at least is left to test on.
    n_train = min((9 * n_rows + 5) // 10, n_rows - 1)
    random = np.random.RandomState(1)
    permutations = [random.permutation(n_rows).astype(np.intp) for _ in range(n_splits)]
    return [(permutation[:n_train], permutation[n_train:]) for permutation in permutations]


def read_splits(name: str) -> list[Split]:
    """The published splits of a table, found or downloaded, rows ascending (the file keeps no order)."""
    check_table_name(name)
    if name == "year":
        raise ValueError("year has no file of splits, its one split is fixed: use standard_splits('year')")
    entry = ENTRIES[name]
    path = f"uci/{name}/splits.csv.gz"
    is_test = checked_numbers(  # [N, n_splits]
        path,
        lambda: _published_splits(entry, wanted=path),
        sha256=entry.splits_sha256,
        url=entry.url("index_test_*.txt"),
        dtype=np.uint8,
        form="%d",
    )
    return [(np.flatnonzero(column == 0), np.flatnonzero(column == 1)) for column in is_test.T]


def _published_splits(entry: TableEntry, wanted: str) -> npt.NDArray[np.uint8]:
    """The public `index_test_<k>.txt` files, one list of test rows each, as one 0/1 column each."""
    is_test = np.zeros((entry.n_rows, entry.n_splits), dtype=np.uint8)
    with tempfile.TemporaryDirectory() as folder:
        for split in range(entry.n_splits):
            file = Path(folder) / f"index_test_{split}.txt"
            download(entry.url(file.name), file, wanted=wanted)
            rows = np.loadtxt(file, ndmin=1).astype(int)
            if rows.min() < 0 or rows.max() >= entry.n_rows:
                raise ValueError(
                    f"{entry.url(file.name)} should hold rows from 0 to {entry.n_rows - 1}; "
                    f"got {rows.min()} to {rows.max()}"
                )
            is_test[rows, split] = 1
    return is_test


def _year_splits(n_splits: int | None) -> list[Split]:
    if n_splits not in (None, 1):
        raise ValueError(f"year has one fixed split, n_splits must be 1; got {n_splits}")
    return [(np.arange(N_TRAIN, dtype=np.intp), np.arange(N_TRAIN, N_ROWS, dtype=np.intp))]

"""The regression tables of the paper's Table 1."""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vmg_paper.data.catalogue import ENTRIES, TableEntry, check_table_name
from vmg_paper.data.download import checked_numbers, download
from vmg_paper.data.year import load_year


@dataclass(frozen=True, eq=False)
class Table:
    """A regression table and the number of standard splits results on it are averaged over.

    `X` is float64, except for Year, where it is a read-only float32 view of a file on disk.
    """

    name: str
    X: npt.NDArray[Any]  # [N, D]
    y: npt.NDArray[np.float64]  # [N]
    feature_names: tuple[str, ...] | None
    n_splits: int


def load_table(name: str) -> Table:
    """One of `TABLES`, found or downloaded, in the row order that the standard splits refer to."""
    check_table_name(name)
    if name == "year":
        X, y = load_year()
        return Table(name=name, X=X, y=y.astype(np.float64), feature_names=None, n_splits=1)
    entry = ENTRIES[name]
    path = f"uci/{name}/data.csv.gz"
    values = checked_numbers(
        path,
        lambda: _published_values(entry, wanted=path),
        sha256=entry.values_sha256,
        url=entry.url("data.txt"),
        dtype=np.float64,
        form="%.17g",  # 17 digits read back as the same float64
    )
    return Table(
        name=name,
        X=np.ascontiguousarray(values[:, :-1]),
        y=values[:, -1].copy(),
        feature_names=entry.feature_names,
        n_splits=entry.n_splits,
    )


def _published_values(entry: TableEntry, wanted: str) -> npt.NDArray[np.float64]:
    """The public `data.txt`, its columns put in our order, target last, by the index files beside it."""
    with tempfile.TemporaryDirectory() as folder:
        files = {part: Path(folder) / f"{part}.txt" for part in ("data", "index_features", "index_target")}
        for file in files.values():
            download(entry.url(file.name), file, wanted=wanted)
        values = np.loadtxt(files["data"], dtype=np.float64, ndmin=2)
        # The index files are text written by NumPy, whole numbers that may read "3" or "3.0".
        features = np.loadtxt(files["index_features"], ndmin=1).astype(int)
        target = np.loadtxt(files["index_target"], ndmin=1).astype(int)
    columns = np.concatenate([features, target])
    if columns.max() >= values.shape[1]:
        raise ValueError(
            f"{entry.url('data.txt')} should have more than {columns.max()} columns by its index files; "
            f"got {values.shape[1]}"
        )
    return np.ascontiguousarray(values[:, columns])

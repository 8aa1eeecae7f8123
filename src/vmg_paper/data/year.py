"""Year (YearPredictionMSD): the release year of 515,345 songs from 90 features of their sound."""

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from vmg_paper.data.download import cache_folder, fetch_file, find_file, write_whole

N_ROWS = 515_345
N_TRAIN = 463_715  # the first rows: no artist is in both parts
N_COLUMNS = 91  # the year, then 90 features
MEMBER = "YearPredictionMSD.txt"
URL = "https://archive.ics.uci.edu/static/public/203/yearpredictionmsd.zip"
SHA256 = "06f801af323bb7798e800583acce4ea1ed2697ac12c23f4424aea0a7a3d09e11"


def load_year() -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Features [N, 90] and years [N], read-only views of a file that is made from the archive once."""
    path = "year/values.npy"
    converted = find_file(path)
    if converted is None:
        converted = cache_folder() / path
        convert_archive(fetch_file("year/yearpredictionmsd.zip", URL, SHA256), converted)
    return open_converted(converted)


def open_converted(file: Path, n_rows: int = N_ROWS) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Features and years as views of a file that `convert_archive` wrote."""
    values = np.load(file, mmap_mode="r")
    if values.shape != (n_rows, N_COLUMNS) or values.dtype != np.float32:
        raise ValueError(
            f"{file} should hold float32 values of shape {(n_rows, N_COLUMNS)}; got {values.dtype}, "
            f"{values.shape}. Delete it to have it made again"
        )
    return values[:, 1:], values[:, 0]


def convert_archive(archive: Path, target: Path, *, n_rows: int = N_ROWS, chunk_rows: int = 8192) -> None:
    """Write the archive's text as a float32 array [n_rows, 91], `chunk_rows` rows in memory at a time."""
    options: dict[str, Any] = {"header": None, "dtype": np.float32, "float_precision": "round_trip"}
    with write_whole(target) as unfinished, zipfile.ZipFile(archive) as files, files.open(MEMBER) as text:
        values = np.lib.format.open_memmap(unfinished, mode="w+", dtype=np.float32, shape=(n_rows, N_COLUMNS))
        start = 0
        for chunk in pd.read_csv(text, chunksize=chunk_rows, **options):
            stop = start + len(chunk)
            values[start:stop] = chunk
            start = stop
        if start != n_rows:
            raise ValueError(f"{archive} should hold {n_rows} rows; got {start}")
        values.flush()
        del values  # closes the map: an open file cannot be renamed on Windows

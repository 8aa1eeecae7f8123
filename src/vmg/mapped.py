"""Tables larger than memory: rows of files that are mapped, and Parquet made into such files a piece at a time.

A step of training reads random rows. A Parquet file gives its rows in order, in compressed pieces; an array in a
``.npy`` file gives any row for the price of reading its page. So Parquet is gone through once, and training maps what
was written:

    mean, scale = parquet_moments("trips.parquet", features)
    convert_parquet("trips.parquet", "x.npy", features, mean=mean, scale=scale)
    vmg.training.train(network, likelihood, open_rows("x.npy"), open_rows("y.npy"), n_steps=10_000)
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vmg.files import replacing

__all__ = ["convert_parquet", "open_rows", "parquet_moments"]

Array = NDArray[np.float64]

CHUNK_ROWS = 65_536


def open_rows(path: str | os.PathLike[str]) -> Tensor:
    """A tensor [N, ...] whose memory is a ``.npy`` file: a row is read when a step asks for it.

    Pages that were read stay as long as the system has room for them, and cost the process no memory of its own.
    """
    values = np.load(path, mmap_mode="c")  # writable in memory, as PyTorch wants it, and never on disk
    if values.ndim < 1 or not values.flags.c_contiguous:
        raise ValueError(f"{os.fspath(path)} must hold rows, in C order; got shape {values.shape}")
    return torch.from_numpy(values)


def parquet_moments(
    source: str | os.PathLike[str], columns: Sequence[str], *, chunk_rows: int = CHUNK_ROWS
) -> tuple[Array, Array]:
    """Mean and standard deviation of each column, in one pass; a constant column gets standard deviation 1.

    Pieces are merged as Chan, Golub & LeVeque (1983) do, which keeps the digits that a sum of squares loses.
    """
    n, mean, squares = 0, np.zeros(len(columns)), np.zeros(len(columns))
    for values in _chunks(source, columns, chunk_rows):
        m = len(values)
        own = values.mean(0)
        away = own - mean
        squares += ((values - own) ** 2).sum(0) + away**2 * (n * m / (n + m))
        mean += away * (m / (n + m))
        n += m
    if n == 0:
        raise ValueError(f"{os.fspath(source)} must have rows; got none")
    scale = np.sqrt(squares / n)
    return mean, np.where(scale <= 1e-10 * np.abs(mean), 1.0, scale)


def convert_parquet(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    columns: Sequence[str],
    *,
    mean: Array | float = 0.0,
    scale: Array | float = 1.0,
    chunk_rows: int = CHUNK_ROWS,
) -> None:
    """Write (column − mean)/scale of some columns as a float32 array [N, columns] that :func:`open_rows` opens.

    ``chunk_rows`` rows are in memory at a time. An old file is replaced only by a complete new one.
    """
    n_rows, start = _parquet(source).metadata.num_rows, 0
    Path(target).parent.mkdir(parents=True, exist_ok=True)
    with replacing(target) as unfinished:
        shape = (n_rows, len(columns))
        written = np.lib.format.open_memmap(unfinished, mode="w+", dtype=np.float32, shape=shape)
        for values in _chunks(source, columns, chunk_rows):
            written[start : start + len(values)] = (values - mean) / scale
            start += len(values)
        written.flush()
        del written  # closes the map: an open file cannot be renamed on Windows


def _parquet(source: str | os.PathLike[str]) -> Any:
    from pyarrow import parquet  # of the extra `app`

    return parquet.ParquetFile(source)


def _chunks(source: str | os.PathLike[str], columns: Sequence[str], chunk_rows: int) -> Iterator[Array]:
    """Columns as arrays [at most chunk_rows, columns] in double precision."""
    file = _parquet(source)
    unknown = [name for name in columns if name not in file.schema_arrow.names]
    if not columns or unknown:
        raise ValueError(f"columns must be among {file.schema_arrow.names}; got {list(columns)}")
    for batch in file.iter_batches(chunk_rows, columns=list(columns)):
        values = np.column_stack([np.asarray(batch.column(name), dtype=np.float64) for name in columns])
        bad = [name for k, name in enumerate(columns) if not np.isfinite(values[:, k]).all()]
        if bad:
            raise ValueError(f"columns must be finite numbers, none missing; got others in {', '.join(bad)}")
        yield values

"""What a streamed fit has done so far, in a file: one that was killed goes on from there.

The file holds the estimator that was fitted to the sample, with the sums over all pieces that the second pass has read.
The first pass, which says what the columns are, is made again: it is short, and gives the same.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from vmg.estimators import VMGClassifier, VMGRegressor
from vmg.estimators.saving import from_state, to_state
from vmg.persistence import ModelFileError, read, write

__all__ = ["FitCheckpoint", "RowsRead"]

Array = NDArray[np.float64]
Estimator = VMGRegressor | VMGClassifier

PREFIX = "rows_read."


@dataclass(frozen=True)
class RowsRead:
    """How far the second pass is: the last piece that it has read, the rows until there, and their range [D]."""

    last_piece: int
    n_rows: int
    low: Array
    high: Array

    @classmethod
    def none(cls, n_features: int) -> RowsRead:
        """Nothing yet."""
        return cls(-1, 0, np.full(n_features, np.inf), np.full(n_features, -np.inf))

    def and_also(self, x: Array) -> RowsRead:
        """With more rows of inputs x [n, D]."""
        low, high = np.minimum(self.low, x.min(0)), np.maximum(self.high, x.max(0))
        return RowsRead(self.last_piece, self.n_rows + len(x), low, high)


class FitCheckpoint:
    """The file of one process of a streamed fit.

    Parameters
    ----------
    path : path
        The file; the process of rank k > 0 appends ``.k``.
    run : str
        Fingerprint of data and settings: a file of another run is refused.
    rank : int
    """

    def __init__(self, path: str | os.PathLike[str], run: str, rank: int = 0) -> None:
        self.path = Path(os.fspath(path) + (f".{rank}" if rank else ""))
        self.run = run

    def save(self, estimator: Estimator, read_so_far: RowsRead) -> None:
        """Keep the present state; a crash on the way leaves the last one."""
        tensors, document = to_state(estimator)
        ends = {"low": read_so_far.low, "high": read_so_far.high}
        tensors |= {PREFIX + name: torch.from_numpy(end) for name, end in ends.items()}
        counts = {"last_piece": read_so_far.last_piece, "n_rows": read_so_far.n_rows}
        write(self.path, tensors, {"holds": "streamed fit", "run": self.run, **counts, "estimator": document})

    def load(self) -> tuple[Estimator, RowsRead] | None:
        """The state that was kept; None where there is none."""
        if not self.path.exists():
            return None
        tensors, document = read(self.path)
        if document.get("holds") != "streamed fit" or document.get("run") != self.run:
            raise ModelFileError(f"{self.path} must be of the same data and settings; remove it to start anew")
        try:
            low, high = (tensors.pop(PREFIX + name).numpy() for name in ("low", "high"))
            found = RowsRead(int(document["last_piece"]), int(document["n_rows"]), low, high)
            estimator = from_state(tensors, document["estimator"])
        except (KeyError, TypeError, ValueError) as error:
            raise ModelFileError(f"{self.path} is damaged; remove it to start anew") from error
        assert isinstance(estimator, VMGRegressor | VMGClassifier)
        return estimator, found

    def remove(self) -> None:
        """Forget the run, which is finished."""
        self.path.unlink(missing_ok=True)

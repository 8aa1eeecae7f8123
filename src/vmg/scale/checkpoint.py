"""The state of a streamed fit on disk, one file for each process: a fit that was killed goes on from there.

A file holds the estimator that was fitted to the sample, with the sums over the pieces that its process has read in the
second pass. The first pass, which finds out what the columns are, is made again; it also gives the digest of all rows,
by which a file of other data is refused.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import vmg
from vmg import processes
from vmg.estimators import ESTIMATORS, TableClassifier, TableRegressor
from vmg.files import Run
from vmg.model_file import ModelFileError, fingerprint_tensors, read, write

__all__ = ["Estimator", "FitCheckpoint", "RowsRead"]

Array = NDArray[np.float64]
Estimator = TableRegressor | TableClassifier

PREFIX = "rows_read."


@dataclass(frozen=True)
class RowsRead:
    """Progress of the second pass: the numbers of its pieces, the rows in them, and their range [D]."""

    pieces: tuple[int, ...]
    n_rows: int
    low: Array
    high: Array

    @classmethod
    def none(cls, n_features: int) -> RowsRead:
        """Nothing yet."""
        return cls((), 0, np.full(n_features, np.inf), np.full(n_features, -np.inf))

    def and_also(self, x: Array) -> RowsRead:
        """With more rows of inputs x [n, D]."""
        low, high = np.minimum(self.low, x.min(0)), np.maximum(self.high, x.max(0))
        return RowsRead(self.pieces, self.n_rows + len(x), low, high)

    def after(self, piece: int) -> RowsRead:
        """With a piece whose rows are all there."""
        return replace(self, pieces=(*self.pieces, piece))


class FitCheckpoint:
    """The file of one process of a streamed fit; nothing is kept where no path is given.

    Parameters
    ----------
    path : path, optional
        The file; that of process k > 0 appends ``.k``.
    settings : mapping
        What the fit depends on; a file of another fit is refused, and so is another number of processes.
    resume : bool
        False removes the files of all processes that are there.
    """

    def __init__(self, path: str | os.PathLike[str] | None, settings: Mapping[str, Any], *, resume: bool) -> None:
        rank, size = processes.rank_and_size()
        self.path = None if path is None else Path(os.fspath(path) + (f".{rank}" if rank else ""))
        self._run = Run({**settings, "processes": size, "version": vmg.__version__})
        if path is not None and not resume and rank == 0:
            for file in Path(path).parent.glob(f"{glob.escape(Path(path).name)}*"):
                if re.fullmatch(r"(\.\d+)?", file.name.removeprefix(Path(path).name)):
                    file.unlink()

    def save(self, estimator: Estimator, read_so_far: RowsRead) -> None:
        """Keep the present state; a crash on the way leaves the last one."""
        if self.path is None:
            return
        tensors, document = estimator.to_document()
        ends = {"low": read_so_far.low, "high": read_so_far.high}
        tensors |= {PREFIX + name: torch.from_numpy(end) for name, end in ends.items()}
        counts = {"pieces": list(read_so_far.pieces), "n_rows": read_so_far.n_rows}
        run = self._run.to_document()
        write(self.path, tensors, {"holds": "streamed fit", "run": run, **counts, "estimator": document})

    def load(self) -> tuple[Estimator, RowsRead] | None:
        """The state that was kept; None where a process of the run has kept none, or other networks than the rest."""
        state = self._load_own()
        networks = "" if state is None else _fingerprint(state[0])
        return state if set(processes.gather(networks)) == {networks} else None

    def _load_own(self) -> tuple[Estimator, RowsRead] | None:
        if self.path is None or not self.path.exists():
            return None
        tensors, document = read(self.path)
        self._run.require_same(document.get("run"), self.path)
        try:
            low, high = (tensors.pop(PREFIX + name).numpy() for name in ("low", "high"))
            done = RowsRead(tuple(map(int, document["pieces"])), int(document["n_rows"]), low, high)
            estimator = ESTIMATORS[document["estimator"]["holds"]].from_document(tensors, document["estimator"])
        except (KeyError, TypeError, ValueError) as error:
            raise ModelFileError(f"{self.path} is damaged; remove it to start again") from error
        assert isinstance(estimator, TableRegressor | TableClassifier)
        return estimator, done

    def remove(self) -> None:
        """Forget what was kept."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)


def _fingerprint(estimator: Estimator) -> str:
    assert estimator.ensemble_ is not None
    return fingerprint_tensors(dict(estimator.ensemble_.members.features.state_dict()))

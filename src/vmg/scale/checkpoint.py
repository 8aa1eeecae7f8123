"""What a streamed fit has done so far, in files: one that was killed goes on from there, with any number of processes.

The file of a process holds the estimator that was fitted to the sample, with the sums over the pieces that this process
has read in the second pass. Sums of different pieces add up, so processes that go on may be more or fewer: each takes
the files whose number leaves its own rank when divided by the number of processes, and reads what is in no file. The
first pass, which says what the columns are, is made again: it is short, and gives the same.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from vmg.estimators import ESTIMATORS, TableClassifier, TableRegressor
from vmg.fit.gaussian import RegressionEnsemble
from vmg.math.evidence import RowStatistics
from vmg.model_file import ModelFileError, fingerprint_tensors, read, write
from vmg.scale import sharing

__all__ = ["FitCheckpoint", "KeptFit", "Offer", "RowsRead", "choose_offers"]

Array = NDArray[np.float64]
Estimator = TableRegressor | TableClassifier

PREFIX = "rows_read."


@dataclass(frozen=True)
class RowsRead:
    """What the second pass has read: the numbers of its pieces, the rows in them, and their range [D]."""

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
        return self.plus(RowsRead((), len(x), x.min(0), x.max(0)))

    def after(self, piece: int) -> RowsRead:
        """With a piece whose rows are all there."""
        return replace(self, pieces=(*self.pieces, piece))

    def plus(self, other: RowsRead) -> RowsRead:
        """What both have read."""
        low, high = np.minimum(self.low, other.low), np.maximum(self.high, other.high)
        return RowsRead((*self.pieces, *other.pieces), self.n_rows + other.n_rows, low, high)


class FitCheckpoint:
    """The file of one process of a streamed fit.

    Parameters
    ----------
    path : path
        The file; that of number k > 0 appends ``.k``.
    run : str
        Fingerprint of data and settings: a file of another run is refused.
    number : int
    """

    def __init__(self, path: str | os.PathLike[str], run: str, number: int = 0) -> None:
        self.path = Path(os.fspath(path) + (f".{number}" if number else ""))
        self.run = run

    def save(self, estimator: Estimator, read_so_far: RowsRead) -> None:
        """Keep the present state; a crash on the way leaves the last one."""
        tensors, document = estimator.to_document()
        ends = {"low": read_so_far.low, "high": read_so_far.high}
        tensors |= {PREFIX + name: torch.from_numpy(end) for name, end in ends.items()}
        counts = {"pieces": list(read_so_far.pieces), "n_rows": read_so_far.n_rows}
        write(self.path, tensors, {"holds": "streamed fit", "run": self.run, **counts, "estimator": document})

    def load(self) -> tuple[Estimator, RowsRead]:
        """The state that was kept."""
        tensors, document = read(self.path)
        if document.get("holds") != "streamed fit" or document.get("run") != self.run:
            raise ModelFileError(f"{self.path} must be of the same data and settings; remove it to start anew")
        try:
            low, high = (tensors.pop(PREFIX + name).numpy() for name in ("low", "high"))
            found = RowsRead(tuple(map(int, document["pieces"])), int(document["n_rows"]), low, high)
            estimator = ESTIMATORS[document["estimator"]["holds"]].from_document(tensors, document["estimator"])
        except (KeyError, TypeError, ValueError) as error:
            raise ModelFileError(f"{self.path} is damaged; remove it to start anew") from error
        assert isinstance(estimator, TableRegressor | TableClassifier)
        return estimator, found

    def remove(self) -> None:
        """Forget what was kept."""
        self.path.unlink(missing_ok=True)


class Offer(NamedTuple):
    """What a file can give: sums over pieces, for networks with this fingerprint."""

    number: int
    networks: str
    pieces: tuple[int, ...]


class KeptFit:
    """What all processes of a streamed fit keep; nothing where no path is given.

    Parameters
    ----------
    path : path, optional
    run : sequence
        Data and settings, as JSON takes them.
    resume : bool
        False forgets what is there.
    """

    def __init__(self, path: str | os.PathLike[str] | None, run: Sequence[Any], *, resume: bool) -> None:
        self._path = None if path is None else Path(path)
        self._run = hashlib.sha256(json.dumps(run).encode()).hexdigest()
        self._rank, self._size = sharing.shard()
        if not resume:
            self.remove()

    def load(self) -> tuple[Estimator, RowsRead, frozenset[int]] | None:
        """The estimator with this process's sums, what they are sums of, and all pieces that need no reading.

        None where no process has kept anything.
        """
        found = {number: self._file(number).load() for number in self._own_numbers()}
        offers = [Offer(number, _fingerprint(one), done.pieces) for number, (one, done) in found.items()]
        taken = choose_offers([offer for some in sharing.gather(offers) for offer in some])
        if not taken:
            return None
        estimator, done = self._join([found[offer.number] for offer in taken if offer.number in found])
        owners = {offer.number % self._size for offer in taken}
        if len(owners) < self._size:  # the others need networks too
            sent = sharing.send(estimator, source=taken[0].number % self._size)
            estimator = estimator or sent
        assert estimator is not None
        done = done or RowsRead.none(estimator.n_features_in_)
        self.save(estimator, done)
        sharing.gather(None)  # all have written before any file is removed
        self.remove(but=self._rank)
        return estimator, done, frozenset(piece for offer in taken for piece in offer.pieces)

    @staticmethod
    def _join(states: Sequence[tuple[Estimator, RowsRead]]) -> tuple[Estimator | None, RowsRead | None]:
        """One estimator with the sums of several; an estimator that has read no piece has the sample's sums."""
        states = sorted(states, key=lambda state: -len(state[1].pieces))
        if not states:
            return None, None
        (estimator, done), *others = states
        for other, more in others:
            if more.pieces:
                for total, part in zip(_sums(estimator), _sums(other), strict=True):
                    total += part
                done = done.plus(more)
        return estimator, done

    def save(self, estimator: Estimator, done: RowsRead) -> None:
        """Keep the state of this process."""
        if self._path is not None:
            self._file(self._rank).save(estimator, done)

    def remove(self, *, but: int | None = None) -> None:
        """Forget what this process answers for; the number ``but`` is kept."""
        for number in self._own_numbers():
            if number != but:
                self._file(number).remove()

    def _file(self, number: int) -> FitCheckpoint:
        assert self._path is not None
        return FitCheckpoint(self._path, self._run, number)

    def _own_numbers(self) -> list[int]:
        """Numbers of the files that are there and fall to this process."""
        if self._path is None or not self._path.parent.is_dir():
            return []
        prefix = self._path.name + "."
        names = [path.name.removeprefix(prefix) for path in self._path.parent.iterdir() if path.name.startswith(prefix)]
        numbers = [int(name) for name in names if name.isascii() and name.isdecimal()]
        return [k for k in sorted([*numbers, *([0] if self._path.exists() else [])]) if k % self._size == self._rank]


def choose_offers(offers: Sequence[Offer]) -> list[Offer]:
    """Files that have no piece in common, the longest first.

    A file that was joined to another, and not removed because the run was killed, has pieces in common with it.
    """
    taken: list[Offer] = []
    for offer in sorted(offers, key=lambda offer: (-len(offer.pieces), offer.number)):
        read_already = {piece for other in taken for piece in other.pieces}
        if not taken or (offer.networks == taken[0].networks and not read_already & set(offer.pieces)):
            taken.append(offer)
    return taken


def _sums(estimator: Estimator) -> RowStatistics:
    assert isinstance(estimator.ensemble_, RegressionEnsemble)
    return estimator.ensemble_.members.head.statistics


def _fingerprint(estimator: Estimator) -> str:
    assert estimator.ensemble_ is not None
    return fingerprint_tensors(dict(estimator.ensemble_.members.features.state_dict()))

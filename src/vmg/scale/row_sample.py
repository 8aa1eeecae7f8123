"""A fair sample of rows that pass by, of a size that does not grow with their number."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

__all__ = ["RowSample"]


class RowSample:
    """The ``size`` rows with the smallest of random keys, every row having one.

    All sets of ``size`` rows are equally likely. Keys are drawn from a generator for each piece of the dataset, so the
    sample does not depend on who reads which piece: samples of two processes merge into that of one.
    """

    def __init__(self, size: int, seed: int) -> None:
        if size < 1:
            raise ValueError(f"size must be at least 1; got {size}")
        self._size, self._seed = size, seed
        self._keys: list[NDArray[np.float64]] = []
        self._frames: list[pd.DataFrame] = []
        self._held, self._limit = 0, np.inf
        self._generators: dict[int, np.random.Generator] = {}

    def add(self, frame: pd.DataFrame, piece: int) -> None:
        """Look at rows of the piece with this number, in the order in which they are in it."""
        if piece not in self._generators:
            self._generators = {piece: np.random.default_rng([self._seed, piece])}  # a piece is read in one go
        keys = self._generators[piece].random(len(frame))
        chosen = keys < self._limit
        self._take(keys[chosen], frame[chosen])

    def _take(self, keys: NDArray[np.float64], frame: pd.DataFrame) -> None:
        if not len(keys):
            return
        self._keys.append(keys)
        self._frames.append(frame)
        self._held += len(keys)
        if self._held >= 2 * self._size:
            self._prune()

    def _prune(self) -> None:
        keys = np.concatenate(self._keys)
        order = np.argsort(keys)[: self._size]
        frame = pd.concat(self._frames, ignore_index=True).iloc[order].reset_index(drop=True)
        self._keys, self._frames, self._held = [keys[order]], [frame], len(order)
        if self._held == self._size:
            self._limit = float(keys[order[-1]])

    def merge(self, other: RowSample) -> None:
        """Take in the sample of other pieces."""
        for keys, frame in zip(other._keys, other._frames, strict=True):
            self._take(keys, frame)

    def rows(self) -> pd.DataFrame:
        """The sample, in random order."""
        if not self._keys:
            return pd.DataFrame()
        self._prune()
        return self._frames[0]

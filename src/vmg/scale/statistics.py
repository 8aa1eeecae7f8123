"""The first pass over a dataset: statistics of all columns, the encoder that they give, and a fair sample of rows.

Statistics and samples of two sets of rows can be merged.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from vmg.fit.design import Standardiser
from vmg.tables import TableEncoder
from vmg.tables.cells import CellTable, plain, to_texts
from vmg.tables.choices import TableChoices
from vmg.tables.columns import CategoryColumn, Column, NumberColumn

__all__ = ["ColumnStatistics", "Moments", "RowSample", "TableStatistics", "fit_encoder", "fit_scaling"]

Array = NDArray[np.float64]

KEPT_LEVELS = 10_000
"""Different texts that are counted; with more, the rarest are forgotten and the counts of others are at least right."""


@dataclass(frozen=True)
class Moments:
    """Number, mean, sum of squares around the mean and range of rows, [D] each but the number.

    Two sets are merged as Chan, Golub & LeVeque (1983) do, which keeps the digits that a sum of squares loses.
    """

    n: int
    mean: Array
    squares: Array
    low: Array
    high: Array

    @classmethod
    def of(cls, values: Array) -> Moments:
        """Moments of rows [N, D], at least one."""
        mean = values.mean(0)
        return cls(len(values), mean, np.square(values - mean).sum(0), values.min(0), values.max(0))

    def plus(self, other: Moments) -> Moments:
        """Statistics of both sets of rows together."""
        n = self.n + other.n
        away = other.mean - self.mean
        mean = self.mean + away * (other.n / n)
        squares = self.squares + other.squares + away**2 * (self.n * (other.n / n))
        return Moments(n, mean, squares, np.minimum(self.low, other.low), np.maximum(self.high, other.high))

    @property
    def scale(self) -> Array:
        """Standard deviation."""
        return np.sqrt(self.squares / self.n)


@dataclass
class ColumnStatistics:
    """Statistics of one column: all rows, those without a value, moments of numbers, and how often each text comes."""

    n_rows: int = 0
    n_missing: int = 0
    numbers: Moments | None = None
    levels: Counter[str] = field(default_factory=Counter)
    complete: bool = True  # whether every level is counted

    @classmethod
    def of(cls, column: pd.Series) -> ColumnStatistics:
        """Statistics of the rows of a column."""
        column = plain(column)
        if pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column):
            values = column.to_numpy(dtype=np.float64, na_value=np.nan)
            finite = values[np.isfinite(values)]
            moments = Moments.of(finite[:, None]) if len(finite) else None
            return cls(len(values), len(values) - len(finite), moments)
        n_missing = int(column.isna().sum())
        if pd.api.types.is_datetime64_any_dtype(column):
            return cls(len(column), n_missing)
        counts = column.value_counts(dropna=True)  # few different cells become texts, not all
        texts = to_texts(pd.Series(counts.index.astype(object)))
        levels: Counter[str] = Counter()
        for text, n in zip(texts, counts.to_numpy(), strict=True):
            if text is None:
                n_missing += int(n)
            else:
                levels[text] += int(n)
        return cls(len(column), n_missing, None, levels)._bounded()

    def plus(self, other: ColumnStatistics) -> ColumnStatistics:
        """Statistics of both sets of rows together."""
        numbers = [part.numbers for part in (self, other) if part.numbers is not None]
        merged = numbers[0].plus(numbers[1]) if len(numbers) == 2 else next(iter(numbers), None)
        levels = self.levels + other.levels
        complete = self.complete and other.complete
        found = ColumnStatistics(self.n_rows + other.n_rows, self.n_missing + other.n_missing, merged, levels, complete)
        return found._bounded()

    def _bounded(self) -> ColumnStatistics:
        if len(self.levels) > 2 * KEPT_LEVELS:
            self.levels, self.complete = Counter(dict(self.levels.most_common(KEPT_LEVELS))), False
        return self

    def filled(self, value: float) -> tuple[float, float]:
        """Mean and standard deviation of the numbers where missing ones are ``value``."""
        if self.numbers is None:
            return value, 0.0
        gap = np.full(1, value)
        zero = np.zeros(1)
        whole = self.numbers
        if self.n_missing:
            whole = whole.plus(Moments(self.n_missing, gap, zero, gap, gap))
        return float(whole.mean[0]), float(whole.scale[0])

    def share(self, n: int) -> tuple[float, float]:
        """Mean and standard deviation of a column that is 1 in ``n`` rows and 0 in the others."""
        p = n / max(self.n_rows, 1)
        return p, math.sqrt(max(p * (1 - p), 0.0))


@dataclass
class TableStatistics:
    """Statistics of every column of a table."""

    columns: dict[str, ColumnStatistics] = field(default_factory=dict)
    n_rows: int = 0

    def add(self, frame: pd.DataFrame) -> None:
        """Take in more rows."""
        if len(frame):
            self.merge(TableStatistics({name: ColumnStatistics.of(frame[name]) for name in frame}, len(frame)))

    def merge(self, other: TableStatistics) -> None:
        """Take in the rows behind other statistics."""
        self.n_rows += other.n_rows
        own: Mapping[str, ColumnStatistics] = self.columns
        both = {name: own[name].plus(more) if name in own else more for name, more in other.columns.items()}
        self.columns = both | {name: alone for name, alone in own.items() if name not in both}

    def to_document(self) -> dict[str, Any]:
        """The statistics as a message for another process."""
        columns = {
            name: {**vars(column), "numbers": None if column.numbers is None else vars(column.numbers)}
            for name, column in self.columns.items()
        }
        return {"columns": columns, "n_rows": self.n_rows}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> TableStatistics:
        """The statistics that :meth:`to_document` described."""
        columns = {}
        for name, column in document["columns"].items():
            numbers = None if column["numbers"] is None else Moments(**column["numbers"])
            columns[name] = ColumnStatistics(**{**column, "numbers": numbers, "levels": Counter(column["levels"])})
        return cls(columns, document["n_rows"])


# -- columns as numbers: kinds from a sample, counts and scales from all rows ------------------------------------------


def fit_encoder(
    sample: CellTable, statistics: TableStatistics, choices: TableChoices | None = None, target: str | None = None
) -> TableEncoder:
    """Find the kind of each column, its median and its format of dates on a sample.

    Counts of missing cells, and the levels of categories with theirs, are those of all rows.
    """
    encoder = TableEncoder.fit(sample, choices, target=target)
    return replace(encoder, columns=tuple(_counted(column, statistics) for column in encoder.columns))


def _counted(column: Column, statistics: TableStatistics) -> Column:
    found = statistics.columns[column.name]
    if isinstance(column, CategoryColumn) and found.levels:
        return CategoryColumn.of_counts(column.name, found.n_missing, found.levels) or column
    if isinstance(column, NumberColumn) and found.numbers is None:  # numbers that are written as texts
        return replace(column, n_missing=max(column.n_missing, found.n_missing))
    return replace(column, n_missing=found.n_missing)


def fit_scaling(encoder: TableEncoder, encoded: Array, statistics: TableStatistics) -> Standardiser:
    """Mean and standard deviation of each feature, over all rows where counts and moments of columns say them.

    Those of dates, booleans and numbers written as texts are of the sample, ``encoded`` [n, D].
    """
    sampled = Standardiser.fit(encoded)
    known = dict(zip(encoder.feature_names, zip(sampled.mean, sampled.scale, strict=True), strict=True))
    for column in encoder.columns:
        found = statistics.columns[column.name]
        if column.n_missing:
            known[f"{column.name}: missing"] = found.share(found.n_missing)
        if isinstance(column, NumberColumn) and found.numbers is not None:
            known[column.name] = found.filled(column.median)
        elif isinstance(column, CategoryColumn) and found.levels:
            for level in column.levels:
                known[f"{column.name} = {level}"] = found.share(found.levels[level])
            rest = found.n_rows - found.n_missing - sum(found.levels[level] for level in column.levels)
            if column.n_pooled:
                known[f"{column.name}: other"] = found.share(rest)
    mean, scale = (np.array([known[name][k] for name in encoder.feature_names]) for k in (0, 1))
    constant = scale <= 1e-10 * np.maximum(np.abs(mean), np.finfo(np.float64).tiny)
    return Standardiser(mean, np.where(constant, 1.0, scale))


# -- a sample of rows -------------------------------------------------------------------------------------------------


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

    def to_document(self) -> dict[str, Any]:
        """The sample as a message for another process: keys, and rows as a file of Arrow."""
        file = pa.BufferOutputStream()
        table = pa.Table.from_pandas(self.rows(), preserve_index=False)
        with pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
        keys = self._keys[0] if self._keys else np.zeros(0)
        return {"keys": keys, "rows": file.getvalue().to_pybytes()}

    def merge(self, document: Mapping[str, Any]) -> None:
        """Take in the sample that :meth:`to_document` described."""
        self._take(document["keys"], pa.ipc.open_file(document["rows"]).read_pandas())

    def rows(self) -> pd.DataFrame:
        """The sample, in random order."""
        if not self._keys:
            return pd.DataFrame()
        self._prune()
        return self._frames[0]

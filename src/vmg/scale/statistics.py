"""The first pass over a dataset: counts of all columns, the encoder that they give, and a fair sample of rows.

Counts and samples of two sets of rows can be merged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd
import pyarrow as pa

from vmg.tables import TableEncoder
from vmg.tables.cells import CellTable, plain, to_texts
from vmg.tables.choices import TableChoices
from vmg.tables.columns import CategoryColumn, Column

__all__ = ["RowSample", "TableCounts", "count_texts", "fit_encoder"]

KEPT_LEVELS = 10_000
"""Different texts that are counted; with more, the rarest are forgotten and the counts of others are at least right."""

MISSING = ""  # the text that stands for missing cells; no other text is empty
KEY = "vmg: random key"  # a column of a sample


def count_texts(column: pd.Series) -> Counter[str]:
    """How often each text comes in a column, and how many cells are missing; of numbers and dates only the latter."""
    column = plain(column)
    counts = Counter({MISSING: int(column.isna().sum())})
    if pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column):
        counts[MISSING] += int(np.isinf(column.to_numpy(dtype=np.float64, na_value=np.nan)).sum())
    elif not pd.api.types.is_datetime64_any_dtype(column):
        levels = column.value_counts(dropna=True)  # few different cells become texts, not all
        for text, n in zip(to_texts(pd.Series(levels.index.astype(object))), levels.to_numpy(), strict=True):
            counts[text or MISSING] += int(n)
    return counts


@dataclass
class TableCounts:
    """Rows of a table, and the texts of every column with how often they come; see :func:`count_texts`."""

    n_rows: int = 0
    columns: dict[str, Counter[str]] = field(default_factory=dict)

    def add(self, frame: pd.DataFrame) -> None:
        """Take in more rows."""
        self.merge(len(frame), {name: count_texts(frame[name]) for name in frame})

    def merge(self, n_rows: int, columns: Mapping[str, Mapping[str, int]]) -> None:
        """Take in the rows behind other counts."""
        self.n_rows += n_rows
        for name, more in columns.items():
            counts = self.columns.get(name, Counter()) + Counter(more)
            if len(counts) > 2 * KEPT_LEVELS:
                missing = counts.pop(MISSING, 0)
                counts = Counter({MISSING: missing, **dict(counts.most_common(KEPT_LEVELS))})
            self.columns[name] = counts


def fit_encoder(
    sample: CellTable, counts: TableCounts, choices: TableChoices | None = None, target: str | None = None
) -> TableEncoder:
    """Find the kind of each column, its median and its format of dates on a sample.

    Counts of missing cells, and the levels of categories with theirs, are those of all rows.
    """
    encoder = TableEncoder.fit(sample, choices, target=target)
    return replace(encoder, columns=tuple(_counted(column, counts.columns[column.name]) for column in encoder.columns))


def _counted(column: Column, counts: Counter[str]) -> Column:
    levels = {text: n for text, n in counts.items() if text != MISSING}
    if isinstance(column, CategoryColumn) and levels:
        return CategoryColumn.of_counts(column.name, counts[MISSING], levels) or column
    return replace(column, n_missing=max(column.n_missing, counts[MISSING]))  # a text may be none of a number


# -- a sample of rows -------------------------------------------------------------------------------------------------


class RowSample:
    """The ``size`` rows with the smallest of random keys, every row having one.

    All sets of ``size`` rows are equally likely. Keys are drawn from a generator for each piece of the dataset, so the
    sample does not depend on who reads which piece: samples of two processes merge into that of one.
    """

    def __init__(self, size: int, seed: int) -> None:
        if size < 1:
            raise ValueError(f"size must be at least 1; got {size}")
        self._size, self._seed, self._limit = size, seed, np.inf
        self._frames: list[pd.DataFrame] = []
        self._piece, self._generator = -1, np.random.default_rng()

    def add(self, frame: pd.DataFrame, piece: int) -> None:
        """Look at rows of the piece with this number, in the order in which they are in it."""
        if piece != self._piece:  # a piece is read in one go
            self._piece, self._generator = piece, np.random.default_rng([self._seed, piece])
        keys = self._generator.random(len(frame))
        self._take(frame[keys < self._limit].assign(**{KEY: keys[keys < self._limit]}))

    def _take(self, keyed: pd.DataFrame) -> None:
        if len(keyed):
            self._frames.append(keyed)
        if sum(map(len, self._frames)) >= 2 * self._size:
            self._frames = [self._smallest()]
            self._limit = float(self._frames[0][KEY].iloc[-1])

    def _smallest(self) -> pd.DataFrame:
        if not self._frames:
            return pd.DataFrame({KEY: np.zeros(0)})
        return pd.concat(self._frames, ignore_index=True).sort_values(KEY, ignore_index=True)[: self._size]

    def to_bytes(self) -> bytes:
        """The sample as a message for another process: a file of Arrow."""
        file, table = pa.BufferOutputStream(), pa.Table.from_pandas(self._smallest(), preserve_index=False)
        with pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
        return bytes(file.getvalue().to_pybytes())

    def merge(self, message: bytes) -> None:
        """Take in the sample that :meth:`to_bytes` described."""
        self._take(pa.ipc.open_file(message).read_pandas())

    def rows(self) -> pd.DataFrame:
        """The sample, in random order."""
        return self._smallest().drop(columns=KEY)

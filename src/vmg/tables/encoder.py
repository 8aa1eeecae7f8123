"""A whole table as numbers: the kind of each column found on training rows, kept for all rows to come."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from vmg.tables.columns import KINDS, CategoryColumn, Column, DateColumn, NumberColumn, column_from_document
from vmg.tables.dates import looks_like_dates
from vmg.tables.errors import TableError
from vmg.tables.phrases import count, listing
from vmg.tables.values import holds_collections, plain, to_texts

__all__ = ["TableEncoder", "check_names"]

IDENTIFIER_NAME = re.compile(r"(.*[_\s.-])?(id|index|idx|row|rownames?|uuid|guid)", re.IGNORECASE)


@dataclass(frozen=True)
class TableEncoder:
    """Columns that are used, in order, and those that are not, with the reason.

    Make one with :meth:`fit`.
    """

    columns: tuple[Column, ...]
    dropped: Mapping[str, str]

    @classmethod
    def fit(cls, frame: pd.DataFrame) -> TableEncoder:
        """Find the kind of each column of ``frame``, which holds training rows without the target."""
        check_names(frame)
        columns: list[Column] = []
        dropped: dict[str, str] = {}
        for name in frame.columns:
            found = _fit_column(frame[name])
            if isinstance(found, Column):
                columns.append(found)
            else:
                dropped[name] = found
        if not columns:
            reasons = "; ".join(f"'{name}' {reason}" for name, reason in dropped.items()) or "there are no columns"
            raise TableError(f"no column is left to learn from: {reasons}")
        return cls(tuple(columns), dropped)

    @property
    def column_names(self) -> list[str]:
        """Columns that a table must have."""
        return [column.name for column in self.columns]

    @property
    def feature_names(self) -> list[str]:
        """Names of the features, in the order of :meth:`transform`'s columns."""
        return [name for features in self.features_of.values() for name in features]

    @property
    def features_of(self) -> dict[str, list[str]]:
        """The features that each column of the table becomes."""
        empty = pd.Series([None], dtype=object)
        return {column.name: list(column.transform(empty)) for column in self.columns}

    def check(self, frame: pd.DataFrame) -> None:
        """Raise a TableError that names the columns which ``frame`` lacks."""
        check_names(frame)
        missing = [name for name in self.column_names if name not in frame.columns]
        if missing:
            raise TableError(
                f"the table lacks {count(len(missing), 'column')} that the model was fitted on: {listing(missing)}; "
                f"it has {listing(frame.columns)}"
            )

    def transform(self, frame: pd.DataFrame) -> NDArray[np.float64]:
        """Features of each row [N, D], all finite; columns that the encoder does not know are ignored."""
        self.check(frame)
        parts = [column.transform(frame[column.name]) for column in self.columns]
        return np.column_stack([feature for part in parts for feature in part.values()])

    # -- saying what was done -----------------------------------------------------------------------------------------

    def describe(self) -> list[str]:
        """What was done with the columns, in short sentences."""
        kinds = Counter(type(column) for column in self.columns)
        used = ", ".join(count(n, kind.kind, kind.plural) for kind, n in kinds.items())
        sentences = [f"Columns used: {len(self.columns)} ({used})."]
        sentences += [f"Column '{name}' dropped: {reason}." for name, reason in self.dropped.items()]

        holes = [f"'{c.name}' ({c.n_missing:,})" for c in self.columns if c.n_missing]
        if holes:
            sentences.append(f"Missing values filled (numbers by the median) and marked: {listing(holes)}.")
        for column in self.columns:
            if isinstance(column, NumberColumn) and column.not_numbers:
                sentences.append(f"Column '{column.name}': not numbers, so missing: {listing(column.not_numbers)}.")
            elif isinstance(column, NumberColumn) and column.decimal_comma:
                sentences.append(f"Column '{column.name}' has decimal commas.")
            elif isinstance(column, DateColumn) and re.match("%[md][/-]", column.date_format):  # either could be first
                sentences.append(f"Dates in '{column.name}' read as {_date_words(column.date_format)}.")
            elif isinstance(column, CategoryColumn) and column.n_pooled:
                sentences.append(
                    f"Column '{column.name}': {count(column.n_pooled, 'rare category', 'rare categories')} "
                    f"pooled as 'other', {len(column.levels)} kept."
                )
        return sentences

    def remarks(self, frame: pd.DataFrame, target: str | None = None) -> list[str]:
        """What in ``frame`` the model cannot use, in short sentences."""
        extra = [n for n in frame.columns if n not in {*self.column_names, *self.dropped, target}]
        sentences = [f"Ignored, as not known from the fit: {listing(extra)}."] if extra else []
        for column in self.columns:
            if column.name in frame.columns and (unseen := column.unseen(frame[column.name])):
                sentences.append(f"Column '{column.name}' has values unknown from the fit: {listing(unseen)}.")
        holes = {c.name: int(to_texts(frame[c.name]).isna().sum()) for c in self.columns if c.name in frame.columns}
        new = [f"'{c.name}' ({holes[c.name]:,})" for c in self.columns if not c.n_missing and holes.get(c.name)]
        if new:
            sentences.append(f"Missing here and never in the fit, so filled (numbers by the median): {listing(new)}.")
        return sentences

    # -- saving -------------------------------------------------------------------------------------------------------

    def to_document(self) -> dict[str, Any]:
        """The encoder for a model file."""
        return {"columns": [column.to_document() for column in self.columns], "dropped": dict(self.dropped)}

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> TableEncoder:
        """The encoder that :meth:`to_document` described."""
        columns, dropped = tuple(column_from_document(column) for column in document["columns"]), document["dropped"]
        names = [column.name for column in columns]
        if len(set(names)) < len(names) or not all(isinstance(reason, str) for reason in dropped.values()):
            raise ValueError("columns must have names of their own, and those that are not used a reason")
        return cls(columns, dropped)


def _fit_column(column: pd.Series) -> Column | str:
    """The fitted column, or why it is of no use."""
    column = plain(column)
    if holds_collections(column):
        return "its cells are lists or structures"
    cells = column if pd.api.types.is_numeric_dtype(column) else to_texts(column)
    n_given, n_distinct = int(cells.notna().sum()), int(cells.nunique())
    if n_given == 0:
        return "it has no values"
    if n_distinct == 1 and n_given == len(cells):
        return f"it is always '{to_texts(column).iloc[0]}'"
    if (
        n_distinct == len(cells)
        and pd.api.types.is_integer_dtype(column)
        and IDENTIFIER_NAME.fullmatch(str(column.name))
    ):
        return "its numbers are all different, like row numbers"
    for kind in KINDS.values():
        fitted = kind.fit(column)
        if fitted is not None:
            return fitted
    if looks_like_dates(column):
        return f"its texts look like dates in a format that is not known, such as '{to_texts(column).dropna().iloc[0]}'"
    return "its texts are all different, like identifiers"


def check_names(frame: pd.DataFrame) -> None:
    """Raise a TableError unless every column has a name of its own, a text."""
    strange = [name for name in frame.columns if not isinstance(name, str)]
    if strange:
        raise TableError(
            f"names of columns must be texts; got {listing(map(repr, strange))} (try frame.rename(columns=str))"
        )
    repeated = frame.columns[frame.columns.duplicated()].unique()
    if len(repeated):
        raise TableError(f"the table has several columns of the same name; rename {listing(repeated)}")


def _date_words(date_format: str) -> str:
    words = {"%m": "month", "%d": "day", "%Y": "year"}
    return re.sub("%[mdY]", lambda part: words[part[0]], date_format.split(" ")[0])

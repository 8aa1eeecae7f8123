"""A whole table as numbers: the kind of each column found on training rows, kept for all rows to come."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from vmg.tables.cells import CellTable
from vmg.tables.choices import TableChoices
from vmg.tables.columns import CategoryColumn, Column, NumberColumn, Reading
from vmg.tables.kinds import column_from_document, day_comes_first, find_kind
from vmg.tables.numbers import find_decimal_comma
from vmg.tables.text_files import MISSING
from vmg.tables.wording import TableError, count, listing

__all__ = ["TableEncoder", "decide_comma"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class TableEncoder:
    """Columns that are used, in order, and those that are not, with the reason.

    Make one with :meth:`fit`.
    """

    columns: tuple[Column, ...]
    dropped: Mapping[str, str]
    decimal_comma: bool = False

    @classmethod
    def fit(
        cls, frame: pd.DataFrame | CellTable, choices: TableChoices | None = None, *, target: str | None = None
    ) -> TableEncoder:
        """Find the kind of each column of ``frame``, which holds training rows.

        ``target`` is a column that only has a say in what commas mean.
        """
        table, choices = CellTable.of(frame, training=True), choices or TableChoices()
        comma = decide_comma(table, choices)
        day_first = day_comes_first(table, comma)
        columns: list[Column] = []
        dropped: dict[str, str] = {}
        for name in table.names:
            if name == target:
                continue
            kind, date_format = choices.types.get(name), choices.date_format(name)
            reading = Reading(comma, day_first, date_format, kind is not None)
            column = find_kind(table[name], reading, kind)
            if isinstance(column, Column):
                columns.append(column)
            else:
                dropped[name] = column
        if not columns:
            reasons = "; ".join(f"'{name}' {reason}" for name, reason in dropped.items()) or "there are no columns"
            raise TableError(f"no column is left to learn from: {reasons}")
        return cls(tuple(columns), dropped, comma)

    def with_target(self, frame: pd.DataFrame | CellTable, target: Array) -> tuple[TableEncoder, Array]:
        """The encoder with target statistics of categories, and the features of the training rows.

        Those statistics are, for each training row, of other folds: its own target is not in its features. ``target``
        [N, outputs] is centred and of unit scale.
        """
        table = CellTable.of(frame, training=True)
        columns: list[Column] = []
        of_other_folds: dict[str, Array] = {}
        for column in self.columns:
            if isinstance(column, CategoryColumn):
                column, apart = column.with_effects(table[column.name], target)
                if apart is not None:
                    of_other_folds |= dict(zip(column.effect_names, apart.T, strict=True))
            columns.append(column)
        encoder = replace(self, columns=tuple(columns))
        features = encoder.transform(table)
        for place, name in enumerate(encoder.feature_names):
            if name in of_other_folds:
                features[:, place] = of_other_folds[name]
        return encoder, features

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
        return {column.name: list(column.feature_scales) for column in self.columns}

    @property
    def widths(self) -> NDArray[np.int64]:
        """How many features each column becomes."""
        return np.array([len(features) for features in self.features_of.values()], dtype=np.int64)

    @property
    def feature_scales(self) -> Array:
        """The distance in each feature that counts as one."""
        return np.array([scale for column in self.columns for scale in column.feature_scales.values()])

    @property
    def text_columns(self) -> dict[str, list[str]]:
        """Columns whose cells a file must give as they are written, each with words that are not missing in it.

        01 is not 1 in them, and a hyphen is not missing where training rows had it as a category.
        """
        texts = [column for column in self.columns if column.kind in ("category", "date", "time")]
        return {c.name: sorted(MISSING & {*c.known}) if isinstance(c, CategoryColumn) else [] for c in texts}

    def check(self, frame: pd.DataFrame | CellTable) -> CellTable:
        """The cells of a table; a TableError that names the columns which it lacks."""
        table = CellTable.of(frame)
        missing = [name for name in self.column_names if name not in table.frame.columns]
        if missing:
            raise TableError(
                f"the table lacks {count(len(missing), 'column')} that the model was fitted on: {listing(missing)}; "
                f"it has {listing(table.names)}"
            )
        return table

    def transform(self, frame: pd.DataFrame | CellTable) -> Array:
        """Features of each row [N, D], all finite; columns that the encoder does not know are ignored."""
        table = self.check(frame)
        features = np.empty((len(table), len(self.feature_names)))
        place = 0
        for column in self.columns:
            for feature in column.transform(table[column.name]).values():
                features[:, place] = feature
                place += 1
        return features

    def marks(self, frame: pd.DataFrame | CellTable) -> list[dict[str, NDArray[np.bool_]]]:
        """The rows of each column that are ``missing``, ``unseen`` or ``outside``."""
        table = self.check(frame)
        return [column.marks(table[column.name]) for column in self.columns]

    def clipped(self, frame: pd.DataFrame | CellTable) -> pd.DataFrame:
        """The table with numbers, dates and times outside the training range moved to its ends."""
        table = self.check(frame)
        return table.frame.assign(**{column.name: column.clipped(table[column.name]) for column in self.columns})

    def with_decimal(self, decimal_comma: bool) -> TableEncoder:
        """The encoder for tables that write numbers in the other convention."""
        columns = [
            replace(column, decimal_comma=decimal_comma) if isinstance(column, NumberColumn) else column
            for column in self.columns
        ]
        return replace(self, columns=tuple(columns), decimal_comma=decimal_comma)

    # -- saying what was done -----------------------------------------------------------------------------------------

    def describe(self) -> list[str]:
        """Short sentences about how the columns are read."""
        kinds = Counter(type(column) for column in self.columns)
        used = ", ".join(count(n, kind.kind, kind.plural) for kind, n in kinds.items())
        sentences = [f"Columns used: {len(self.columns)} ({used})."]
        sentences += [f"Column '{name}' dropped: {reason}." for name, reason in self.dropped.items()]
        if self.decimal_comma:
            sentences.append("Numbers read with decimal commas: 1,5 is one and a half.")
        holes = [f"'{c.name}' ({c.n_missing:,})" for c in self.columns if c.n_missing]
        if holes:
            numbers = any(c.n_missing for c in self.columns if not isinstance(c, CategoryColumn))
            how = " (numbers by the median)" if numbers else ""
            sentences.append(f"Missing values filled{how} and marked: {listing(holes)}.")
        return sentences + [note for column in self.columns for note in column.notes()]

    # -- saving -------------------------------------------------------------------------------------------------------

    def to_document(self) -> dict[str, Any]:
        """The encoder for a model file."""
        return {
            "columns": [column.to_document() for column in self.columns],
            "dropped": dict(self.dropped),
            "decimal_comma": self.decimal_comma,
        }

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> TableEncoder:
        """The encoder that :meth:`to_document` described."""
        columns, dropped = tuple(column_from_document(column) for column in document["columns"]), document["dropped"]
        names = [column.name for column in columns]
        if len(set(names)) < len(names) or not all(isinstance(reason, str) for reason in dropped.values()):
            raise ValueError("columns must have names of their own, and those that are not used a reason")
        comma = document.get("decimal_comma", False)
        if not isinstance(comma, bool):
            raise ValueError(f"decimal_comma must be true or false; got {comma!r:.40}")
        return cls(columns, dropped, comma)


def decide_comma(table: CellTable, choices: TableChoices) -> bool:
    """Whether a comma is the decimal point: as the user says, as its file showed, or as its columns of texts do."""
    if choices.decimal_comma is not None:
        return choices.decimal_comma
    of_file = table.frame.attrs.get("decimal_comma")
    return find_decimal_comma(table) if of_file is None else bool(of_file)

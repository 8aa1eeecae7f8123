"""How one column of a table becomes numbers: a class for each kind, fitted on training rows.

The fields of a fitted column are JSON-able; they are what a model file holds of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, get_type_hints

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from vmg.tables.dates import DATE_FORMATS, day_of_week, day_of_year, find_date_format, to_dates, to_days
from vmg.tables.errors import TableError
from vmg.tables.values import to_numbers, to_texts

__all__ = ["BooleanColumn", "CategoryColumn", "Column", "DateColumn", "NumberColumn", "column_from_document"]

Features = dict[str, NDArray[np.float64]]

LARGEST = 1e154  # the square of a larger number is infinite; one that comes after the fit counts as missing
MAX_LEVELS = 20
MIN_LEVEL_ROWS = 2  # a category seen once teaches nothing of its own
MIN_NUMBER_SHARE = 0.9  # of the cells that must be numbers for the rest to count as missing
BOOLEAN_WORDS = {"true": 1.0, "false": 0.0, "yes": 1.0, "no": 0.0, "1": 1.0, "0": 0.0}
YEAR_DAYS, WEEK_DAYS = 365.25, 7.0


@dataclass(frozen=True)
class Column(ABC):
    """One column of the table; ``n_missing`` counts the training rows without a value."""

    name: str
    n_missing: int

    kind: ClassVar[str]
    plural: ClassVar[str]

    @classmethod
    @abstractmethod
    def fit(cls, column: pd.Series) -> Column | None:
        """The column as this kind; None if its cells are not of this kind."""

    @abstractmethod
    def transform(self, column: pd.Series) -> Features:
        """Named features of each row, none missing."""

    def unseen(self, column: pd.Series) -> list[str]:
        """Values that training rows did not have and that therefore say nothing."""
        return []

    def to_document(self) -> dict[str, Any]:
        """The fitted column for a model file."""
        return {"kind": self.kind, **asdict(self)}

    def _fill(self, values: pd.Series, filling: float) -> Features:
        """Missing values filled, and marked by a second feature where training rows had some."""
        features = {self.name: values.fillna(filling).to_numpy(dtype=np.float64)}
        return features | self._missing_mark(values)

    def _missing_mark(self, values: pd.Series) -> Features:
        return {f"{self.name}: missing": values.isna().to_numpy(dtype=np.float64)} if self.n_missing else {}


@dataclass(frozen=True)
class NumberColumn(Column):
    """Numbers as they are; missing ones become the median."""

    median: float
    decimal_comma: bool
    not_numbers: list[str]

    kind, plural = "number", "numbers"

    @classmethod
    def fit(cls, column: pd.Series) -> NumberColumn | None:
        if isinstance(column.dtype, pd.CategoricalDtype):  # somebody has decided
            return None
        numbers = to_numbers(column)
        n_numbers = int(numbers.values.notna().sum())
        if n_numbers == 0 or n_numbers < MIN_NUMBER_SHARE * int(column.notna().sum()):
            return None
        if numbers.values.abs().max() > LARGEST:
            raise TableError(
                f"the column '{column.name}' must hold numbers of at most {LARGEST:g} in size; got "
                f"{numbers.values.abs().max():g}. Leave it out, or use another unit."
            )
        median = float(numbers.values.median())
        return cls(str(column.name), len(column) - n_numbers, median, numbers.decimal_comma, numbers.not_numbers)

    def transform(self, column: pd.Series) -> Features:
        values = to_numbers(column, self.decimal_comma).values
        return self._fill(values.where(values.abs() <= LARGEST), self.median)

    def unseen(self, column: pd.Series) -> list[str]:
        found = to_numbers(column, self.decimal_comma).not_numbers
        return [text for text in found if text not in self.not_numbers]


@dataclass(frozen=True)
class BooleanColumn(Column):
    """True and False as 1 and 0; missing ones become the median."""

    median: float

    kind, plural = "boolean", "booleans"

    @classmethod
    def fit(cls, column: pd.Series) -> BooleanColumn | None:
        given = column.dropna()
        if given.empty or not (pd.api.types.is_bool_dtype(given) or pd.api.types.is_object_dtype(given)):
            return None
        if not given.map(lambda cell: isinstance(cell, bool | np.bool_)).all():
            return None
        return cls(str(column.name), len(column) - len(given), float(given.astype(float).median()))

    def transform(self, column: pd.Series) -> Features:
        return self._fill(to_texts(column).str.lower().map(BOOLEAN_WORDS).astype(float), self.median)

    def unseen(self, column: pd.Series) -> list[str]:
        words = to_texts(column).dropna().astype(str)
        return sorted(words[~words.str.lower().isin(list(BOOLEAN_WORDS))].unique())


@dataclass(frozen=True)
class DateColumn(Column):
    """Days since 1970, and the place in the year, the week and (where rows differ in it) the day on a circle."""

    median: float
    date_format: str
    time_of_day: bool

    kind, plural = "date", "dates"

    @classmethod
    def fit(cls, column: pd.Series) -> DateColumn | None:
        date_format = find_date_format(column)
        if date_format is None:
            return None
        days = to_days(to_dates(column, date_format))
        given = days.dropna()
        time_of_day = bool((given % 1).nunique() > 1)
        return cls(str(column.name), int(days.isna().sum()), float(given.median()), date_format, time_of_day)

    def transform(self, column: pd.Series) -> Features:
        moments = to_dates(column, self.date_format)
        days = to_days(moments)
        circles = {"year": day_of_year(moments) / YEAR_DAYS, "week": day_of_week(moments) / WEEK_DAYS}
        if self.time_of_day:
            circles["day"] = days.to_numpy() % 1
        features = {f"{self.name}: days": days.fillna(self.median).to_numpy(dtype=np.float64)}
        for part, turn in circles.items():
            angle = 2 * np.pi * turn
            for function in (np.sin, np.cos):  # a missing date is at the centre of the circle
                features[f"{self.name}: {part} {function.__name__}"] = np.nan_to_num(function(angle), nan=0.0)
        return features | self._missing_mark(days)

    def unseen(self, column: pd.Series) -> list[str]:
        unread = to_dates(column, self.date_format).isna() & column.notna()
        return sorted(to_texts(column[unread]).dropna().unique())


@dataclass(frozen=True)
class CategoryColumn(Column):
    """A 0/1 feature for each frequent level, one for all others, one for missing values."""

    levels: list[str]
    n_pooled: int

    kind, plural = "category", "categories"

    @classmethod
    def fit(cls, column: pd.Series) -> CategoryColumn | None:
        texts = to_texts(column)
        counts = texts.value_counts()  # most frequent first
        order = sorted(counts.index, key=lambda level: (-counts[level], level))
        levels = [level for level in order[:MAX_LEVELS] if counts[level] >= MIN_LEVEL_ROWS]
        if not levels:
            return None
        return cls(str(column.name), int(texts.isna().sum()), levels, len(counts) - len(levels))

    def transform(self, column: pd.Series) -> Features:
        texts = to_texts(column)
        features = {f"{self.name} = {level}": (texts == level).to_numpy(dtype=np.float64) for level in self.levels}
        if self.n_pooled:
            other = texts.notna() & ~texts.isin(self.levels)
            features[f"{self.name}: other"] = other.to_numpy(dtype=np.float64)
        return features | self._missing_mark(texts)

    def unseen(self, column: pd.Series) -> list[str]:
        if self.n_pooled:  # they join the pooled ones
            return []
        texts = to_texts(column).dropna()
        return sorted(texts[~texts.isin(self.levels)].unique())


KINDS: dict[str, type[Column]] = {cls.kind: cls for cls in (BooleanColumn, NumberColumn, DateColumn, CategoryColumn)}
"""In the order in which they are tried."""


def column_from_document(document: dict[str, Any]) -> Column:
    """The column that :meth:`Column.to_document` described; a ValueError where it described none."""
    fields = dict(document)
    column = KINDS[fields.pop("kind")](**fields)
    for field, kind in get_type_hints(type(column)).items():
        if field not in fields:
            continue
        value = fields[field]
        items = value if kind == list[str] and isinstance(value, list) else [value]
        wanted = {int: int, bool: bool, str: str, float: (int, float), list[str]: str}[kind]
        if (kind == list[str]) is not isinstance(value, list) or not all(_is(item, wanted) for item in items):
            raise ValueError(f"{field} of a column must be {kind}; got {value!r:.40}")
    if isinstance(column, DateColumn) and column.date_format not in DATE_FORMATS:
        raise ValueError(f"date_format must be one that columns are read with; got {column.date_format!r:.40}")
    return column


def _is(value: Any, kind: Any) -> bool:
    """As isinstance, but True and False are no numbers, and numbers are finite."""
    if isinstance(value, bool) and kind is not bool:
        return False
    return isinstance(value, kind) and not (isinstance(value, float) and not np.isfinite(value))

"""Kinds of columns: what a user says of them, how cells become features, and which rows they know nothing of."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from vmg.model_file import from_fields
from vmg.tables.cells import MIN_SHARE, Cells, TableError, count, listing
from vmg.tables.dates import (
    DATE_FORMATS,
    check_date_format,
    find_date_format,
    looks_like_times,
    to_days,
    to_hours,
    to_timestamps,
)
from vmg.tables.numbers import find_units, to_numbers

__all__ = [
    *("KINDS", "LARGEST", "BooleanColumn", "CategoryColumn", "Column", "DateColumn", "Mask"),
    *("IGNORED", "NumberColumn", "Reading", "TableChoices", "TimeColumn", "ValueColumn", "column_from_document"),
]

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

LARGEST = 1e154  # the square of a larger number is infinite
FAR = 1e6  # widths of the training range; what is farther out is taken to be there, where ignorance is immense already
BOOLEAN_WORDS = {"true": 1.0, "false": 0.0, "yes": 1.0, "no": 0.0, "1": 1.0, "0": 0.0}
DECILES = np.linspace(0.1, 0.9, 9)
YEAR_DAYS = 365.25
SAME_SCALE = float(np.sqrt(2.0))  # of 0/1 features, two of which differ between two categories, and of circles
MAX_LEVELS = 20
MIN_LEVEL_ROWS = 2  # a category seen once teaches nothing of its own
FREQUENT_ROWS = 50  # of a level that has a feature of its own beside the target's mean
MAX_KNOWN = 10_000  # levels whose target statistics are kept; the rarest beyond count as unseen
PRIOR_ROWS = 4.0  # rows' worth of the overall mean that every level's mean is drawn to
FOLDS = 5
SEED = 0

IGNORED = "ignore"
DECIMALS = {".": False, ",": True}


@dataclass(frozen=True)
class TableChoices:
    """The choices, all of them optional; they are stored with the model.

    ``types`` are kinds of columns: number, category, date, time, boolean, or ignore. ``date_formats`` are formats of
    dates by column, as in ``{"sold": "%d/%m/%Y"}``; the column "" stands for all others. The rest is as in
    :class:`~vmg.tables.files.TextRules`.
    """

    types: Mapping[str, str] = field(default_factory=dict)
    date_formats: Mapping[str, str] = field(default_factory=dict)
    decimal_comma: bool | None = None
    na_values: tuple[str, ...] | None = None
    header: bool = True

    def __post_init__(self) -> None:
        for name, kind in self.types.items():
            if kind not in (*KINDS, IGNORED):
                raise TableError(f"the type of '{name}' must be {IGNORED} or one of {', '.join(KINDS)}; got '{kind}'")
        for date_format in self.date_formats.values():
            check_date_format(date_format)

    @classmethod
    def of(
        cls,
        *,
        categorical: Iterable[str] = (),
        ignore: Iterable[str] = (),
        date_formats: Mapping[str, str] | None = None,
        decimal: str | None = None,
        **others: Any,
    ) -> TableChoices:
        """The choices as estimators and commands have them: names of columns, and the decimal mark."""
        if decimal not in (None, *DECIMALS):
            raise TableError(f"decimal must be a point or a comma; got {decimal!r:.20}")
        types = dict.fromkeys(categorical, "category") | dict.fromkeys(ignore, IGNORED)
        comma = None if decimal is None else DECIMALS[decimal]
        return cls(types, dict(date_formats or {}), comma, **others)

    @property
    def ignored(self) -> list[str]:
        """Columns to leave out."""
        return [name for name, kind in self.types.items() if kind == IGNORED]

    def without(self, names: Sequence[str]) -> TableChoices:
        """The choices about other columns."""
        types, formats = ({k: v for k, v in part.items() if k not in names} for part in (self.types, self.date_formats))
        return replace(self, types=types, date_formats=formats)

    @property
    def named(self) -> list[str]:
        """Columns that a table must have for the choices to mean something."""
        return list(dict.fromkeys([*self.types, *(name for name in self.date_formats if name)]))

    @property
    def reading(self) -> dict[str, Any]:
        """The arguments of :func:`~vmg.tables.read_table`: cells of some columns are read as they are written."""
        texts = [name for name in self.named if self.kind(name) in ("category", "date", "time")]
        return {name: getattr(self, name) for name in ("decimal_comma", "na_values", "header")} | {"texts": texts}

    def kind(self, name: str) -> str | None:
        """The kind of a column: a date where its format is given; None: found out."""
        return self.types.get(name, "date" if name in self.date_formats else None)

    def date_format(self, name: str) -> str | None:
        """The format of a column's dates."""
        return self.date_formats.get(name) or (self.date_formats.get("") if self.kind(name) == "date" else None)


class Reading(NamedTuple):
    """How cells of a table are read, as far as it is not the column's own matter."""

    decimal_comma: bool = False
    day_first: bool | None = None
    date_format: str | None = None
    kind: str | None = None  # that the user says the column is of


@dataclass(frozen=True)
class Column(ABC):
    """One column of the table; ``n_missing`` counts the training rows without a value."""

    name: str
    n_missing: int

    kind: ClassVar[str]
    plural: ClassVar[str]

    @classmethod
    @abstractmethod
    def fit(cls, cells: Cells, reading: Reading) -> Column | None:
        """The column as this kind; None if its cells are not of this kind."""

    @property
    @abstractmethod
    def feature_scales(self) -> dict[str, float]:
        """Names of the features, and the distance in each that counts as one; infinite: none."""

    @abstractmethod
    def transform(self, cells: Cells, *, clip: bool = False) -> list[Array]:
        """Features of the rows, none missing; ``clip`` moves values outside the training range to its ends."""

    @abstractmethod
    def marks(self, cells: Cells, slack: float = 0.0) -> dict[str, Mask]:
        """Rows whose cell is ``missing`` (or cannot be read), ``unseen`` in training, or ``outside`` its range.

        Values are outside that lie beyond the range by more than ``slack`` times their spread.
        """

    def unseen(self, cells: Cells) -> list[str]:
        """Values that training rows did not have and that therefore say nothing."""
        marks = self.marks(cells)
        strange = marks.get("unseen", marks["missing"]) & ~cells.missing
        return sorted(cells.levels[np.unique(cells.codes[strange])]) if strange.any() else []

    @abstractmethod
    def notes(self) -> list[str]:
        """Sentences about how the column is read."""

    @property
    def _missing_scale(self) -> dict[str, float]:
        return {f"{self.name}: missing": 1.0} if self.n_missing else {}

    def _missing_mark(self, missing: Mask) -> list[Array]:
        """A feature that marks missing cells, where training rows had some."""
        return [missing.astype(np.float64)] if self.n_missing else []


# -- numbers, booleans, dates and times: one value a cell --------------------------------------------------------------


@dataclass(frozen=True)
class ValueColumn(Column):
    """Cells that are values: those of training rows have a median, a range and a spread.

    Missing ones become the median. ``unreadable`` are texts of training rows that are no values.
    """

    median: float = 0.0
    low: float = -LARGEST
    high: float = LARGEST
    spread: float = 1.0
    unreadable: list[str] = field(default_factory=list)
    quantiles: list[float] = field(default_factory=list)  # at 10 % to 90 %

    quantity: ClassVar[str] = ""  # what the feature is called beside the column's name

    @classmethod
    def fit(cls, cells: Cells, reading: Reading) -> ValueColumn | None:
        choices = cls._choose(cells, reading)
        if choices is None:
            return None
        column = cls(cells.name, 0, **choices)
        values = column.values(cells)
        given = values[~np.isnan(values)]
        if not len(given) or (len(given) < MIN_SHARE * cells.n_given and not reading.kind):
            return None
        scale = float(np.abs(given).max()) or 1.0
        if scale > LARGEST:
            raise TableError(
                f"the column '{cells.name}' must hold {cls.plural} of at most {LARGEST:g} in size; got {scale:g}. "
                "Leave it out, or use another unit."
            )
        return replace(
            column,
            n_missing=len(values) - len(given),
            median=float(np.median(given)),
            low=float(given.min()),
            high=float(given.max()),
            spread=float((given / scale).std() * scale) or 1.0,
            unreadable=column.unseen(cells),
            quantiles=np.quantile(given, DECILES).tolist(),
        )

    @classmethod
    @abstractmethod
    def _choose(cls, cells: Cells, reading: Reading) -> dict[str, Any] | None:
        """The fields that say how cells are read; None if they are not of this kind."""

    @abstractmethod
    def values(self, cells: Cells) -> Array:
        """The cells as values, in the convention of the fit; NaN where missing or no value."""

    def circles(self, values: Array) -> dict[str, Array]:
        """Places of values that come round again, such as days of the week, as shares of a turn."""
        return {}

    @property
    def is_feature(self) -> bool:
        """Whether the value itself is a feature, beside its circles."""
        return True

    @property
    def feature_scales(self) -> dict[str, float]:
        parts = [f"{self.name}: {circle} {part}" for circle in self.circles(np.empty(0)) for part in ("sin", "cos")]
        own = {f"{self.name}{self.quantity}": self.spread} if self.is_feature else {}
        return own | dict.fromkeys(parts, SAME_SCALE) | self._missing_scale

    def transform(self, cells: Cells, *, clip: bool = False) -> list[Array]:
        values = np.clip(self.values(cells), self.low, self.high) if clip else self.values(cells)
        missing, reach = np.isnan(values), min(FAR * max(self.high - self.low, self.spread), LARGEST)
        near = np.clip(values, max(self.low - reach, -LARGEST), min(self.high + reach, LARGEST))
        features = [np.where(missing, self.median, near)] if self.is_feature else []
        for turn in self.circles(values).values():  # what is missing is at the centre
            features += [np.nan_to_num(part(2 * np.pi * turn), nan=0.0) for part in (np.sin, np.cos)]
        return features + self._missing_mark(missing)

    def marks(self, cells: Cells, slack: float = 0.0) -> dict[str, Mask]:
        values, margin = self.values(cells), slack * self.spread
        return {"missing": np.isnan(values), "outside": (values < self.low - margin) | (values > self.high + margin)}

    def unseen(self, cells: Cells) -> list[str]:
        return [text for text in super().unseen(cells) if text not in self.unreadable]

    def notes(self) -> list[str]:
        words = listing(self.unreadable)
        return [f"Column '{self.name}': not {self.plural}, so missing: {words}."] if self.unreadable else []


@dataclass(frozen=True)
class NumberColumn(ValueColumn):
    """Numbers as they are, in one unit."""

    decimal_comma: bool = False
    unit: str = ""

    kind, plural = "number", "numbers"

    @classmethod
    def _choose(cls, cells: Cells, reading: Reading) -> dict[str, Any] | None:
        if cells.is_category and not reading.kind:
            return None
        return {"decimal_comma": reading.decimal_comma, "unit": find_units(cells)[0]}

    def values(self, cells: Cells) -> Array:
        return to_numbers(cells, self.decimal_comma, self.unit)

    def notes(self) -> list[str]:
        named = [f"Column '{self.name}' is in '{self.unit}'."] if self.unit and self.unit != "%" else []
        return super().notes() + named


@dataclass(frozen=True)
class BooleanColumn(ValueColumn):
    """True and False as 1 and 0."""

    kind, plural = "boolean", "booleans"

    @classmethod
    def fit(cls, cells: Cells, reading: Reading) -> ValueColumn | None:
        column = super().fit(cells, reading)
        return column and replace(column, low=0.0, high=1.0, spread=1.0)

    @classmethod
    def _choose(cls, cells: Cells, reading: Reading) -> dict[str, Any] | None:
        are_objects = cells.column.dtype == object and pd.api.types.infer_dtype(cells.column, skipna=True) == "boolean"
        return {} if are_objects or pd.api.types.is_bool_dtype(cells.column) or reading.kind else None

    def values(self, cells: Cells) -> Array:
        of_levels = [BOOLEAN_WORDS.get(text.lower(), np.nan) for text in cells.levels]
        return cells.spread(np.array(of_levels, np.float64), np.nan)


@dataclass(frozen=True)
class DateColumn(ValueColumn):
    """Days since 1970, and the place in the year, the week and (where rows differ in it) the day on a circle.

    ``trend`` says whether the days themselves are a feature, and ``drift`` how far each output may move away from what
    is predicted for each day beyond the range: an error that grows with the distance, in the target's own units.
    """

    date_format: str = DATE_FORMATS[0]
    time_of_day: bool = False
    trend: bool = True
    drift: list[float] = field(default_factory=list)

    kind, plural, quantity = "date", "dates", ": days"

    @classmethod
    def _choose(cls, cells: Cells, reading: Reading) -> dict[str, Any] | None:
        date_format = reading.date_format or find_date_format(cells, reading.day_first)
        if date_format is None:
            return None
        days = to_days(to_timestamps(cells, date_format))
        return {"date_format": date_format, "time_of_day": len(np.unique(days[~np.isnan(days)] % 1)) > 1}

    def values(self, cells: Cells) -> Array:
        return to_days(to_timestamps(cells, self.date_format))

    @property
    def is_feature(self) -> bool:
        return self.trend

    def days_beyond(self, cells: Cells) -> Array:
        """How many days each cell lies before or after the dates of the training rows."""
        days = np.nan_to_num(self.values(cells), nan=self.median)
        return np.maximum(np.maximum(days - self.high, self.low - days), 0.0)

    def circles(self, values: Array) -> dict[str, Array]:
        day = np.floor(np.nan_to_num(values)).astype("datetime64[D]")
        of_year = np.where(np.isnan(values), np.nan, (day - day.astype("datetime64[Y]")).astype(np.float64) + 1)
        of_week = (np.floor(values) + 3) % 7  # from 0, a Monday; 1970 began on a Thursday
        turns = {"year": of_year / YEAR_DAYS, "week": of_week / 7}
        return turns | ({"day": values % 1} if self.time_of_day else {})

    def notes(self) -> list[str]:
        words = {"%m": "month", "%d": "day", "%y": "year", "%b": "month", "%j": "day of year"}
        day = re.split(" %[HI]", self.date_format)[0]
        said = re.sub("%[a-zA-Z]", lambda part: words.get(part[0].lower(), part[0]), day)
        notes = super().notes() + ([f"Dates in '{self.name}' read as {said}."] if day != DATE_FORMATS[0] else [])
        if not self.trend:
            notes.append(
                f"Column '{self.name}': only its place in the year, week and day is used; a trend over time made later "
                "rows of the table no better known."
            )
        return notes


@dataclass(frozen=True)
class TimeColumn(ValueColumn):
    """Times of day: hours since midnight, and the place in the day on a circle."""

    kind, plural, quantity = "time", "times of day", ": hours"

    @classmethod
    def _choose(cls, cells: Cells, reading: Reading) -> dict[str, Any] | None:
        return {} if looks_like_times(cells) or reading.kind else None

    def values(self, cells: Cells) -> Array:
        return to_hours(cells)

    def circles(self, values: Array) -> dict[str, Array]:
        return {"day": values / 24}


# -- categories -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CategoryColumn(Column):
    """A 0/1 feature for each frequent level, and what stands for the others.

    Without a target they are one feature, ``other``. With one, every level has the mean of the target in its rows,
    drawn to the overall mean as if by ``PRIOR_ROWS`` rows of it: ``effects`` [levels, outputs], in the
    order of ``known``.
    """

    levels: list[str]
    n_pooled: int
    known: list[str] = field(default_factory=list)
    effects: list[list[float]] = field(default_factory=list)

    kind, plural = "category", "categories"

    @classmethod
    def fit(cls, cells: Cells, reading: Reading) -> CategoryColumn | None:
        counts = cells.level_counts
        order = sorted(counts, key=lambda level: (-counts[level], level))
        levels = [level for level in order[:MAX_LEVELS] if counts[level] >= MIN_LEVEL_ROWS]
        n_missing, n_pooled = int(cells.missing.sum()), len(order) - len(levels)
        return cls(cells.name, n_missing, levels, n_pooled, order[:MAX_KNOWN]) if levels else None

    def with_effects(self, cells: Cells, target: Array) -> tuple[CategoryColumn, Array]:
        """The column with target statistics, and those of the training rows themselves, each without its own fold.

        ``target`` [N, outputs] is centred. A column of few levels has none, [N, 0]. On the development tables, with
        columns cut into 23 to 60 levels of 11 to 15 rows, such means were better than 0/1 features of all levels, of
        the largest, or of both.
        """
        if len(self.known) <= MAX_LEVELS:
            return self, np.empty((len(cells), 0))
        counts = cells.level_counts
        frequent = [level for level in self.levels if counts.get(level, 0) >= FREQUENT_ROWS]
        place = self._places(cells, self.known)
        fold = np.random.default_rng(SEED).permutation(np.arange(len(place)) % FOLDS)
        apart = np.zeros(target.shape)
        for k in range(FOLDS):
            apart[fold == k] = self._means(place[fold != k], target[fold != k])[place[fold == k]]
        effects = self._means(place, target)[:-1].tolist()
        return replace(self, levels=frequent, n_pooled=len(counts) - len(frequent), effects=effects), apart

    def _means(self, place: NDArray[np.int64], target: Array) -> Array:
        """Drawn means of each known level [levels + 1, outputs]; the last, for all else, is the overall mean."""
        n = len(self.known) + 1
        rows, sums = np.bincount(place, minlength=n), np.stack([np.bincount(place, one, n) for one in target.T], axis=1)
        overall = target.mean(0)
        means = (sums + PRIOR_ROWS * overall) / (rows + PRIOR_ROWS)[:, None]
        means[-1] = overall
        return means

    @staticmethod
    def _places(cells: Cells, levels: list[str]) -> NDArray[np.int64]:
        """The place of each cell among ``levels``; their number where it is none of them."""
        places = {level: place for place, level in enumerate(levels)}
        return cells.spread(np.array([places.get(text, len(places)) for text in cells.levels], np.int64), len(places))

    @property
    def feature_scales(self) -> dict[str, float]:
        levels = dict.fromkeys((f"{self.name} = {level}" for level in self.levels), SAME_SCALE)
        if self.effects:
            n = len(self.effects[0])
            others = {f"{self.name}: effect" + (f" {k + 1}" if n > 1 else ""): np.inf for k in range(n)}
        else:
            others = {f"{self.name}: other": SAME_SCALE} if self.n_pooled else {}
        return levels | others | self._missing_scale

    def transform(self, cells: Cells, *, clip: bool = False) -> list[Array]:
        place, n_levels = self._places(cells, self.levels), len(self.levels)
        features = [(place == k).astype(np.float64) for k in range(n_levels)]
        if self.effects:
            effects = np.vstack([self.effects, np.zeros((1, len(self.effects[0])))])
            features += [*effects[self._places(cells, self.known)].T]
        elif self.n_pooled:
            features.append(((place == n_levels) & ~cells.missing).astype(np.float64))
        return features + self._missing_mark(cells.missing)

    def marks(self, cells: Cells, slack: float = 0.0) -> dict[str, Mask]:
        unseen = (self._places(cells, self.known) == len(self.known)) & ~cells.missing
        return {"missing": cells.missing, "unseen": unseen}

    def notes(self) -> list[str]:
        if not self.n_pooled:
            return []
        rare = count(self.n_pooled, "rarer category", "rarer categories")
        if self.effects:
            n = len(self.levels) + self.n_pooled
            return [f"Column '{self.name}': {n} categories, {rare} known by the target's mean in their rows."]
        return [f"Column '{self.name}': {rare} pooled as 'other', {len(self.levels)} kept."]


# -- saving -----------------------------------------------------------------------------------------------------------

KINDS: dict[str, type[Column]] = {
    cls.kind: cls for cls in (BooleanColumn, TimeColumn, DateColumn, NumberColumn, CategoryColumn)
}
"""Kinds in the order in which they are tried on the cells of a column."""


def column_from_document(document: dict[str, Any]) -> Column:
    """The column that has these fields and this ``kind``; an error where they describe none."""
    column = from_fields(KINDS[document["kind"]], {name: value for name, value in document.items() if name != "kind"})
    if isinstance(column, DateColumn):
        check_date_format(column.date_format)
    if isinstance(column, CategoryColumn) and column.effects:
        widths = {len(row) for row in column.effects}
        if len(column.effects) != len(column.known) or len(widths) != 1 or 0 in widths:
            raise ValueError("effects of a column must be a row of the same length for each known level")
    return column

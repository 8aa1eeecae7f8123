"""Columns of numbers, booleans and categories: how cells become features, and which rows they know nothing of."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from vmg.tables.cells import AnyCells, Cells, as_cells
from vmg.tables.numbers import Numbers, find_unit, to_numbers
from vmg.tables.wording import TableError, count, listing

__all__ = [
    "LARGEST",
    "MIN_NUMBER_SHARE",
    "BooleanColumn",
    "CategoryColumn",
    "Column",
    "Features",
    "Mask",
    "NumberColumn",
    "Reading",
]

Array = NDArray[np.float64]
Features = dict[str, Array]
Mask = NDArray[np.bool_]

LARGEST = 1e154  # the square of a larger number is infinite
FAR = 1e6  # widths of the training range; what is farther out is taken to be there, where ignorance is immense already
MIN_NUMBER_SHARE = 0.9  # of the cells that must be numbers for the rest to count as missing
BOOLEAN_WORDS = {"true": 1.0, "false": 0.0, "yes": 1.0, "no": 0.0, "1": 1.0, "0": 0.0}
N_QUANTILES = 9
MAX_LEVELS = 20
MIN_LEVEL_ROWS = 2  # a category seen once teaches nothing of its own
FREQUENT_ROWS = 50  # of a level that has a feature of its own beside the target's mean
MAX_KNOWN = 10_000  # levels whose target statistics are kept; the rarest beyond count as unseen
PRIOR_ROWS = 4.0  # rows' worth of the overall mean that every level's mean is drawn to
SAME_SCALE = float(np.sqrt(2.0))  # of 0/1 features, two of which differ between two categories
FOLDS = 5
SEED = 0


class Reading(NamedTuple):
    """How cells of a table are read, as far as it is not the column's own matter."""

    decimal_comma: bool = False
    day_first: bool | None = None
    date_format: str | None = None
    forced: bool = False  # the user says that the column is of this kind


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
        """The features of :meth:`transform`, in its order, and the distance in each that counts as one; inf: none."""

    @abstractmethod
    def transform(self, column: AnyCells) -> Features:
        """Named features of each row, none missing."""

    @abstractmethod
    def marks(self, column: AnyCells) -> dict[str, Mask]:
        """Rows whose cell is ``missing`` (or cannot be read), ``unseen`` in training, or ``outside`` its range."""

    @abstractmethod
    def unseen(self, column: AnyCells) -> list[str]:
        """Values that training rows did not have and that therefore say nothing."""

    def clipped(self, column: AnyCells) -> pd.Series:
        """The column with values outside the training range moved to its ends."""
        return as_cells(column).column

    def notes(self) -> list[str]:
        """Sentences about how the column is read."""
        return []

    def to_document(self) -> dict[str, Any]:
        """The fitted column for a model file."""
        return {"kind": self.kind, **asdict(self)}

    @property
    def _missing_scale(self) -> dict[str, float]:
        return {f"{self.name}: missing": 1.0} if self.n_missing else {}

    def _missing_mark(self, missing: Mask) -> Features:
        """A feature that marks missing cells, where training rows had some."""
        return {name: missing.astype(np.float64) for name in self._missing_scale}


@dataclass(frozen=True)
class NumberColumn(Column):
    """Numbers as they are, in one unit; missing ones become the median."""

    median: float
    decimal_comma: bool
    not_numbers: list[str]
    low: float = -LARGEST
    high: float = LARGEST
    spread: float = 1.0
    unit: str = ""
    quantiles: list[float] = field(default_factory=list)  # at 10 % to 90 %

    kind, plural = "number", "numbers"

    @classmethod
    def fit(cls, cells: Cells, reading: Reading) -> NumberColumn | None:
        if isinstance(cells.column.dtype, pd.CategoricalDtype) and not reading.forced:  # somebody has decided
            return None
        unit = find_unit(cells) or ""
        numbers = to_numbers(cells, reading.decimal_comma, unit)
        given = numbers.values[~np.isnan(numbers.values)]
        n_numbers = len(given)
        if n_numbers == 0 or (n_numbers < MIN_NUMBER_SHARE * cells.n_given and not reading.forced):
            return None
        largest = float(np.abs(given).max())
        if largest > LARGEST:
            raise TableError(
                f"the column '{cells.name}' must hold numbers of at most {LARGEST:g} in size; got {largest:g}. "
                "Leave it out, or use another unit."
            )
        scale = largest or 1.0
        return cls(
            cells.name,
            len(cells) - n_numbers,
            float(np.median(given / scale) * scale),
            numbers.decimal_comma,
            numbers.not_numbers,
            float(given.min()),
            float(given.max()),
            float((given / scale).std() * scale) or 1.0,
            unit,
            np.quantile(given, np.linspace(0.1, 0.9, N_QUANTILES)).tolist(),
        )

    @property
    def feature_scales(self) -> dict[str, float]:
        return {self.name: self.spread} | self._missing_scale

    def read(self, column: AnyCells) -> Numbers:
        """The cells as numbers, in the convention and the unit of the fit."""
        return to_numbers(column, self.decimal_comma, self.unit)

    def transform(self, column: AnyCells) -> Features:
        reach = min(FAR * max(self.high - self.low, self.spread), LARGEST)
        values = self._between(column, max(self.low - reach, -LARGEST), min(self.high + reach, LARGEST))
        missing = np.isnan(values)
        return {self.name: np.where(missing, self.median, values)} | self._missing_mark(missing)

    def _between(self, column: AnyCells, low: float, high: float) -> Array:
        """The cells as numbers, those beyond the ends moved there, infinite ones too; NaN where missing."""
        numbers = self.read(column)
        values = np.clip(numbers.values, low, high)
        far = numbers.infinite != 0
        values[far] = np.where(numbers.infinite[far] > 0, high, low)
        return values

    def marks(self, column: AnyCells) -> dict[str, Mask]:
        numbers = self.read(column)
        values, infinite = numbers.values, numbers.infinite != 0
        with np.errstate(invalid="ignore"):
            outside = infinite | (values < self.low) | (values > self.high)
        return {"missing": np.isnan(values) & ~infinite, "outside": outside}

    def clipped(self, column: AnyCells) -> pd.Series:
        cells = as_cells(column)
        return pd.Series(self._between(cells, self.low, self.high), index=cells.index)

    def unseen(self, column: AnyCells) -> list[str]:
        return [text for text in self.read(column).not_numbers if text not in self.not_numbers]

    def notes(self) -> list[str]:
        said = (
            [f"Column '{self.name}': not numbers, so missing: {listing(self.not_numbers)}."] if self.not_numbers else []
        )
        if self.unit and self.unit != "%":
            said.append(f"Column '{self.name}' is in '{self.unit}'.")
        return said


@dataclass(frozen=True)
class BooleanColumn(Column):
    """True and False as 1 and 0; missing ones become the median."""

    median: float

    kind, plural = "boolean", "booleans"

    @classmethod
    def fit(cls, cells: Cells, reading: Reading) -> BooleanColumn | None:
        if not (reading.forced or _are_booleans(cells.column)):
            return None
        values = cls._values(cells)
        given = values[~np.isnan(values)]
        if not len(given) or len(given) < MIN_NUMBER_SHARE * cells.n_given:
            return None
        return cls(cells.name, len(cells) - len(given), float(np.median(given)))

    @staticmethod
    def _values(column: AnyCells) -> Array:
        cells = as_cells(column)
        return cells.spread(np.array([BOOLEAN_WORDS.get(text.lower(), np.nan) for text in cells.levels]), np.nan)

    @property
    def feature_scales(self) -> dict[str, float]:
        return {self.name: 1.0} | self._missing_scale

    def transform(self, column: AnyCells) -> Features:
        values = self._values(column)
        missing = np.isnan(values)
        return {self.name: np.where(missing, self.median, values)} | self._missing_mark(missing)

    def marks(self, column: AnyCells) -> dict[str, Mask]:
        return {"missing": np.isnan(self._values(column))}

    def unseen(self, column: AnyCells) -> list[str]:
        return sorted(text for text in as_cells(column).levels if text.lower() not in BOOLEAN_WORDS)


def _are_booleans(column: pd.Series) -> bool:
    if pd.api.types.is_bool_dtype(column):
        return True
    return column.dtype == object and pd.api.types.infer_dtype(column, skipna=True) == "boolean"


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
        return cls.of_counts(cells.name, int(cells.missing.sum()), cells.level_counts)

    @classmethod
    def of_counts(cls, name: str, n_missing: int, counts: dict[str, int]) -> CategoryColumn | None:
        """The column of a table in which texts come so often; None where none of them comes again."""
        order = sorted(counts, key=lambda level: (-counts[level], level))
        levels = [level for level in order[:MAX_LEVELS] if counts[level] >= MIN_LEVEL_ROWS]
        return cls(name, n_missing, levels, len(order) - len(levels), order[:MAX_KNOWN]) if levels else None

    def with_effects(self, cells: Cells, target: Array) -> tuple[CategoryColumn, Array | None]:
        """The column with target statistics, and those of the training rows themselves, each without its own fold.

        ``target`` [N, outputs] is centred. A column of few levels needs none. On the development tables, with columns
        cut into 23 to 60 levels of 11 to 15 rows, such means were better than 0/1 features of all levels, of the
        largest, or of both.
        """
        if len(self.known) <= MAX_LEVELS:
            return self, None
        counts = cells.level_counts
        frequent = [level for level in self.levels if counts.get(level, 0) >= FREQUENT_ROWS]
        place = self._places(cells)
        fold = np.random.default_rng(SEED).permutation(np.arange(len(place)) % FOLDS)
        apart = np.zeros(target.shape)
        for k in range(FOLDS):
            apart[fold == k] = self._means(place[fold != k], target[fold != k])[place[fold == k]]
        effects = self._means(place, target)[:-1].tolist()
        return replace(self, levels=frequent, n_pooled=len(counts) - len(frequent), effects=effects), apart

    def _means(self, place: NDArray[np.int64], target: Array) -> Array:
        """Drawn means of each known level [levels + 1, outputs]; the last, for all else, is the overall mean."""
        sums, rows = np.zeros((len(self.known) + 1, target.shape[1])), np.zeros(len(self.known) + 1)
        np.add.at(sums, place, target)
        np.add.at(rows, place, 1.0)
        overall = target.mean(0)
        means = (sums + PRIOR_ROWS * overall) / (rows + PRIOR_ROWS)[:, None]
        means[-1] = overall
        return means

    def _places(self, cells: Cells) -> NDArray[np.int64]:
        """The place of each cell in ``known``; its length where it is none of them."""
        places = {level: place for place, level in enumerate(self.known)}
        return cells.spread(np.array([places.get(text, len(places)) for text in cells.levels], np.int64), len(places))

    @property
    def feature_scales(self) -> dict[str, float]:
        scales = {f"{self.name} = {level}": SAME_SCALE for level in self.levels}
        if len(self.effects):
            scales |= dict.fromkeys(self.effect_names, np.inf)
        elif self.n_pooled:
            scales[f"{self.name}: other"] = SAME_SCALE
        return scales | self._missing_scale

    def transform(self, column: AnyCells) -> Features:
        cells = as_cells(column)
        places = {level: place for place, level in enumerate(self.levels)}
        place = cells.spread(np.array([places.get(text, -1) for text in cells.levels], np.int64), -1)
        features = {f"{self.name} = {level}": (place == k).astype(np.float64) for level, k in places.items()}
        if len(self.effects):
            effects = np.vstack([np.asarray(self.effects), np.zeros((1, len(self.effects[0])))])
            features |= dict(zip(self.effect_names, effects[self._places(cells)].T, strict=True))
        elif self.n_pooled:
            features[f"{self.name}: other"] = ((place < 0) & ~cells.missing).astype(np.float64)
        return features | self._missing_mark(cells.missing)

    @property
    def effect_names(self) -> list[str]:
        """Names of the features that hold target statistics."""
        n = len(self.effects[0]) if len(self.effects) else 0
        return [f"{self.name}: effect" + (f" {k + 1}" if n > 1 else "") for k in range(n)]

    def marks(self, column: AnyCells) -> dict[str, Mask]:
        cells = as_cells(column)
        return {"missing": cells.missing, "unseen": cells.spread(self._strange(cells), False)}

    def _strange(self, cells: Cells) -> Mask:
        """The levels that no training row had."""
        known = set(self.known)
        return np.array([text not in known for text in cells.levels], dtype=bool)

    def unseen(self, column: AnyCells) -> list[str]:
        cells = as_cells(column)
        return sorted(cells.levels[self._strange(cells)])

    def notes(self) -> list[str]:
        if not self.n_pooled:
            return []
        rare = count(self.n_pooled, "rarer category", "rarer categories")
        if len(self.effects):
            n = len(self.levels) + self.n_pooled
            return [f"Column '{self.name}': {n} categories, {rare} known by the target's mean in their rows."]
        return [f"Column '{self.name}': {rare} pooled as 'other', {len(self.levels)} kept."]

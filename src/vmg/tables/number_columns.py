"""Columns of numbers and of booleans."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from vmg.tables.column import Column, Features, Mask, Reading
from vmg.tables.errors import TableError
from vmg.tables.numbers import Numbers, find_unit, to_numbers
from vmg.tables.values import plain, to_texts
from vmg.tables.wording import listing

__all__ = ["LARGEST", "MIN_NUMBER_SHARE", "BooleanColumn", "NumberColumn"]

LARGEST = 1e154  # the square of a larger number is infinite
FAR = 1e6  # widths of the training range; what is farther out is taken to be there, where ignorance is immense already
MIN_NUMBER_SHARE = 0.9  # of the cells that must be numbers for the rest to count as missing
BOOLEAN_WORDS = {"true": 1.0, "false": 0.0, "yes": 1.0, "no": 0.0, "1": 1.0, "0": 0.0}
N_QUANTILES = 9


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
    quantiles: list[float] = field(default_factory=list)  # at 10 % to 90 %; a file of an earlier version has none

    kind, plural = "number", "numbers"

    @classmethod
    def fit(cls, column: pd.Series, reading: Reading) -> NumberColumn | None:
        if isinstance(column.dtype, pd.CategoricalDtype) and not reading.forced:  # somebody has decided
            return None
        unit = "" if pd.api.types.is_numeric_dtype(plain(column)) else find_unit(column) or ""
        numbers = to_numbers(column, reading.decimal_comma, unit)
        given = numbers.values[~np.isnan(numbers.values)]
        n_numbers = len(given)
        if n_numbers == 0 or (n_numbers < MIN_NUMBER_SHARE * int(column.notna().sum()) and not reading.forced):
            return None
        largest = float(np.abs(given).max())
        if largest > LARGEST:
            raise TableError(
                f"the column '{column.name}' must hold numbers of at most {LARGEST:g} in size; got {largest:g}. "
                "Leave it out, or use another unit."
            )
        scale = largest or 1.0
        return cls(
            str(column.name),
            len(column) - n_numbers,
            float(np.median(given / scale) * scale),
            numbers.decimal_comma,
            numbers.not_numbers,
            float(given.min()),
            float(given.max()),
            float((given / scale).std() * scale) or 1.0,
            unit,
            np.quantile(given, np.linspace(0.1, 0.9, N_QUANTILES)).tolist(),
        )

    def read(self, column: pd.Series) -> Numbers:
        """The cells as numbers, in the convention and the unit of the fit."""
        return to_numbers(column, self.decimal_comma, self.unit)

    def transform(self, column: pd.Series) -> Features:
        reach = min(FAR * max(self.high - self.low, self.spread), LARGEST)
        return self._fill(
            self._between(column, max(self.low - reach, -LARGEST), min(self.high + reach, LARGEST)), self.median
        )

    def _between(self, column: pd.Series, low: float, high: float) -> NDArray[np.float64]:
        """The cells as numbers, those beyond the ends moved there, infinite ones too; NaN where missing."""
        numbers = self.read(column)
        values = np.where(numbers.infinite != 0, np.copysign(np.inf, numbers.infinite), numbers.values)
        return np.clip(values, low, high)

    def marks(self, column: pd.Series) -> dict[str, Mask]:
        numbers = self.read(column)
        values, infinite = numbers.values, numbers.infinite != 0
        with np.errstate(invalid="ignore"):
            outside = infinite | (values < self.low) | (values > self.high)
        return {"missing": np.isnan(values) & ~infinite, "outside": outside}

    def clipped(self, column: pd.Series) -> pd.Series:
        return pd.Series(self._between(column, self.low, self.high), index=column.index)

    def feature_scales(self) -> list[float]:
        return [self.spread, *[1.0] * bool(self.n_missing)]

    def unseen(self, column: pd.Series) -> list[str]:
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
    def fit(cls, column: pd.Series, reading: Reading) -> BooleanColumn | None:
        given = column.dropna()
        if reading.forced:
            values = cls._values(column)
            if values.notna().sum() < MIN_NUMBER_SHARE * len(given) or given.empty:
                return None
            return cls(str(column.name), int(values.isna().sum()), float(values.median()))
        if given.empty or not (pd.api.types.is_bool_dtype(given) or pd.api.types.is_object_dtype(given)):
            return None
        if not given.map(lambda cell: isinstance(cell, bool | np.bool_)).all():
            return None
        return cls(str(column.name), len(column) - len(given), float(given.astype(float).median()))

    @staticmethod
    def _values(column: pd.Series) -> pd.Series:
        return to_texts(column).str.lower().map(BOOLEAN_WORDS).astype(float)

    def transform(self, column: pd.Series) -> Features:
        return self._fill(self._values(column).to_numpy(), self.median)

    def marks(self, column: pd.Series) -> dict[str, Mask]:
        return {"missing": self._values(column).isna().to_numpy()}

    def feature_scales(self) -> list[float]:
        return [1.0, *[1.0] * bool(self.n_missing)]

    def unseen(self, column: pd.Series) -> list[str]:
        words = to_texts(column).dropna().astype(str)
        return sorted(words[~words.str.lower().isin(list(BOOLEAN_WORDS))].unique())

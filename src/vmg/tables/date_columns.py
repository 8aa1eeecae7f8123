"""Columns of dates and of times of day."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from vmg.tables.cells import AnyCells, Cells, as_cells
from vmg.tables.columns import Column, Features, Mask, Reading
from vmg.tables.dates import (
    DATE_FORMATS,
    day_of_week,
    day_of_year,
    find_date_format,
    looks_like_times,
    to_days,
    to_hours,
    to_timestamps,
)
from vmg.tables.wording import listing

__all__ = ["DateColumn", "TimeColumn"]

YEAR_DAYS, WEEK_DAYS, DAY_HOURS = 365.25, 7.0, 24.0
ANY_DAY = 1e9  # days since 1970 that no calendar reaches
RADIUS = float(np.sqrt(2.0))  # a distance on a circle that counts as one


def _on_circle(name: str, turn: NDArray[np.float64]) -> Features:
    """Sine and cosine of a share of a turn; what is missing is at the centre."""
    angle = 2 * np.pi * turn
    return {f"{name} {part.__name__}": np.nan_to_num(part(angle), nan=0.0) for part in (np.sin, np.cos)}


def _circle_scales(name: str, *circles: str) -> dict[str, float]:
    return {f"{name}: {circle} {part}": RADIUS for circle in circles for part in ("sin", "cos")}


def _unread(cells: Cells, read: NDArray[np.float64]) -> list[str]:
    """The texts of cells that are given and could not be read."""
    return sorted(cells.levels[np.unique(cells.codes[np.isnan(read) & ~cells.missing])])


@dataclass(frozen=True)
class DateColumn(Column):
    """Days since 1970, and the place in the year, the week and (where rows differ in it) the day on a circle."""

    median: float
    date_format: str
    time_of_day: bool
    low: float = -ANY_DAY
    high: float = ANY_DAY
    spread: float = 1.0
    not_dates: list[str] = field(default_factory=list)

    kind, plural = "date", "dates"

    @classmethod
    def fit(cls, cells: Cells, reading: Reading) -> DateColumn | None:
        date_format = reading.date_format or find_date_format(cells, reading.day_first)
        if date_format is None:
            return None
        days = to_days(to_timestamps(cells, date_format))
        given = days[~np.isnan(days)]
        if not len(given):
            return None
        return cls(
            cells.name,
            len(days) - len(given),
            float(np.median(given)),
            date_format,
            len(np.unique(given % 1)) > 1,
            float(given.min()),
            float(given.max()),
            float(given.std()) or 1.0,
            _unread(cells, days),
        )

    @property
    def feature_scales(self) -> dict[str, float]:
        circles = ("year", "week", "day") if self.time_of_day else ("year", "week")
        return {f"{self.name}: days": self.spread} | _circle_scales(self.name, *circles) | self._missing_scale

    def days(self, column: AnyCells) -> NDArray[np.float64]:
        """Days since 1970; NaN where missing or not in the format of the fit."""
        return to_days(to_timestamps(column, self.date_format))

    def transform(self, column: AnyCells) -> Features:
        times = to_timestamps(column, self.date_format)
        days = to_days(times)
        features = {f"{self.name}: days": np.where(np.isnan(days), self.median, days)}
        features |= _on_circle(f"{self.name}: year", day_of_year(times) / YEAR_DAYS)
        features |= _on_circle(f"{self.name}: week", day_of_week(times) / WEEK_DAYS)
        if self.time_of_day:
            features |= _on_circle(f"{self.name}: day", days % 1)
        return features | self._missing_mark(np.isnan(days))

    def marks(self, column: AnyCells) -> dict[str, Mask]:
        days = self.days(column)
        with np.errstate(invalid="ignore"):
            return {"missing": np.isnan(days), "outside": (days < self.low) | (days > self.high)}

    def clipped(self, column: AnyCells) -> pd.Series:
        cells = as_cells(column)
        days = np.clip(self.days(cells), self.low, self.high)
        times = np.full(len(days), np.datetime64("NaT", "us"))
        given = ~np.isnan(days)
        times[given] = np.datetime64(0, "us") + np.round(days[given] * 86_400_000_000).astype("timedelta64[us]")
        return pd.Series(times, index=cells.index)

    def unseen(self, column: AnyCells) -> list[str]:
        cells = as_cells(column)
        return [text for text in _unread(cells, self.days(cells)) if text not in self.not_dates]

    def notes(self) -> list[str]:
        said = [f"Column '{self.name}': not dates, so missing: {listing(self.not_dates)}."] if self.not_dates else []
        if self.date_format != DATE_FORMATS[0]:
            said.append(f"Dates in '{self.name}' read as {_date_words(self.date_format)}.")
        return said


def _date_words(date_format: str) -> str:
    words = {"%m": "month", "%d": "day", "%Y": "year", "%y": "year", "%b": "month", "%B": "month", "%j": "day of year"}
    return re.sub("%[a-zA-Z]", lambda part: words.get(part[0], part[0]), re.split(" %[HI]", date_format)[0])


@dataclass(frozen=True)
class TimeColumn(Column):
    """Times of day: hours since midnight, and the place in the day on a circle."""

    median: float
    low: float
    high: float
    spread: float

    kind, plural = "time", "times of day"

    @classmethod
    def fit(cls, cells: Cells, reading: Reading) -> TimeColumn | None:
        if not (looks_like_times(cells) or reading.forced):
            return None
        hours = to_hours(cells)
        given = hours[~np.isnan(hours)]
        if not len(given):
            return None
        ends = float(given.min()), float(given.max())
        return cls(cells.name, len(hours) - len(given), float(np.median(given)), *ends, float(given.std()) or 1.0)

    @property
    def feature_scales(self) -> dict[str, float]:
        return {f"{self.name}: hours": self.spread} | _circle_scales(self.name, "day") | self._missing_scale

    def transform(self, column: AnyCells) -> Features:
        hours = to_hours(column)
        features = {f"{self.name}: hours": np.where(np.isnan(hours), self.median, hours)}
        features |= _on_circle(f"{self.name}: day", hours / DAY_HOURS)
        return features | self._missing_mark(np.isnan(hours))

    def marks(self, column: AnyCells) -> dict[str, Mask]:
        hours = to_hours(column)
        with np.errstate(invalid="ignore"):
            return {"missing": np.isnan(hours), "outside": (hours < self.low) | (hours > self.high)}

    def clipped(self, column: AnyCells) -> pd.Series:
        cells = as_cells(column)
        seconds = pd.Series(3600 * np.clip(to_hours(cells), self.low, self.high), index=cells.index).round()
        return seconds.map(lambda s: f"{int(s) // 3600}:{int(s) // 60 % 60:02d}:{int(s) % 60:02d}", na_action="ignore")

    def unseen(self, column: AnyCells) -> list[str]:
        cells = as_cells(column)
        return _unread(cells, to_hours(cells))

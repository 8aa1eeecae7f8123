"""Columns of dates and of times of day."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from vmg.tables.cells import to_texts
from vmg.tables.columns import Column, Features, Mask, Reading
from vmg.tables.dates import (
    DATE_FORMATS,
    day_of_week,
    day_of_year,
    find_date_format,
    looks_like_times,
    to_dates,
    to_days,
    to_hours,
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
    def fit(cls, column: pd.Series, reading: Reading) -> DateColumn | None:
        date_format = reading.date_format or find_date_format(column, reading.day_first)
        if date_format is None:
            return None
        moments = to_dates(column, date_format)
        days = to_days(moments)
        given = days.dropna()
        if given.empty:
            return None
        strange = to_texts(column[moments.isna() & column.notna()]).dropna().unique()
        return cls(
            str(column.name),
            int(days.isna().sum()),
            float(given.median()),
            date_format,
            bool((given % 1).nunique() > 1),
            float(given.min()),
            float(given.max()),
            float(given.std(ddof=0)) or 1.0,
            sorted(strange),
        )

    def transform(self, column: pd.Series) -> Features:
        moments = to_dates(column, self.date_format)
        days = to_days(moments)
        features = {f"{self.name}: days": days.fillna(self.median).to_numpy(dtype=np.float64)}
        features |= _on_circle(f"{self.name}: year", day_of_year(moments) / YEAR_DAYS)
        features |= _on_circle(f"{self.name}: week", day_of_week(moments) / WEEK_DAYS)
        if self.time_of_day:
            features |= _on_circle(f"{self.name}: day", days.to_numpy() % 1)
        return features | self._missing_mark(days)

    def marks(self, column: pd.Series) -> dict[str, Mask]:
        days = to_days(to_dates(column, self.date_format)).to_numpy()
        with np.errstate(invalid="ignore"):
            return {"missing": np.isnan(days), "outside": (days < self.low) | (days > self.high)}

    def clipped(self, column: pd.Series) -> pd.Series:
        moments = to_dates(column, self.date_format)
        ends = [
            np.datetime64(0, "us") + np.timedelta64(round(end * 86_400_000_000), "us") for end in (self.low, self.high)
        ]
        days = to_days(moments)
        return moments.mask(days < self.low, ends[0]).mask(days > self.high, ends[1])

    def feature_scales(self) -> list[float]:
        return [self.spread, *[RADIUS] * (6 if self.time_of_day else 4), *[1.0] * bool(self.n_missing)]

    def unseen(self, column: pd.Series) -> list[str]:
        unread = to_dates(column, self.date_format).isna() & column.notna()
        return [text for text in sorted(to_texts(column[unread]).dropna().unique()) if text not in self.not_dates]

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
    def fit(cls, column: pd.Series, reading: Reading) -> TimeColumn | None:
        if not (looks_like_times(column) or reading.forced):
            return None
        hours = to_hours(column)
        given = hours.dropna()
        if given.empty:
            return None
        ends = float(given.min()), float(given.max())
        spread = float(given.std(ddof=0)) or 1.0
        return cls(str(column.name), int(hours.isna().sum()), float(given.median()), *ends, spread)

    def transform(self, column: pd.Series) -> Features:
        hours = to_hours(column)
        features = {f"{self.name}: hours": hours.fillna(self.median).to_numpy(dtype=np.float64)}
        features |= _on_circle(f"{self.name}: day", hours.to_numpy() / DAY_HOURS)
        return features | self._missing_mark(hours)

    def marks(self, column: pd.Series) -> dict[str, Mask]:
        hours = to_hours(column).to_numpy()
        with np.errstate(invalid="ignore"):
            return {"missing": np.isnan(hours), "outside": (hours < self.low) | (hours > self.high)}

    def clipped(self, column: pd.Series) -> pd.Series:
        hours = to_hours(column).clip(self.low, self.high)
        seconds = (3600 * hours).round()
        return seconds.map(lambda s: f"{int(s) // 3600}:{int(s) // 60 % 60:02d}:{int(s) % 60:02d}", na_action="ignore")

    def feature_scales(self) -> list[float]:
        return [self.spread, RADIUS, RADIUS, *[1.0] * bool(self.n_missing)]

    def unseen(self, column: pd.Series) -> list[str]:
        unread = to_hours(column).isna() & column.notna()
        return sorted(to_texts(column[unread]).dropna().unique())

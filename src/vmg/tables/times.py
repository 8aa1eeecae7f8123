"""Cells as people write times of day, read as hours."""

from __future__ import annotations

import numpy as np
import pandas as pd

from vmg.tables.values import plain, to_texts

__all__ = ["looks_like_times", "to_hours"]

TIME = r"(?i)([01]?\d|2[0-4]):([0-5]\d)(?::([0-5]\d)(?:\.\d+)?)?\s*(am|pm)?"
MIN_TIME_SHARE = 0.9


def looks_like_times(column: pd.Series) -> bool:
    """Whether nearly every cell that is not missing is like 14:30, 14:30:05 or 2:30 pm."""
    column = plain(column)
    if pd.api.types.is_numeric_dtype(column) or pd.api.types.is_datetime64_any_dtype(column):
        return False
    given = to_texts(column).dropna().astype(str)
    return not given.empty and bool(given.str.fullmatch(TIME).mean() >= MIN_TIME_SHARE)


def to_hours(column: pd.Series) -> pd.Series:
    """Hours since midnight, with their fractions; NaN where missing or no time of day."""
    texts = to_texts(column)
    hours = np.full(len(texts), np.nan)
    here = texts.notna().to_numpy()
    parts = texts[here].astype(str).str.extract(rf"^{TIME}$".replace("(?i)", "", 1), flags=2)  # 2: in either case
    hour, minute, second = (pd.to_numeric(parts[k]) for k in range(3))
    half = parts[3].str.lower()
    hour = hour.where(half.isna(), hour % 12) + 12 * (half == "pm")
    hours[here] = (hour + minute / 60 + second.fillna(0) / 3600).to_numpy()
    return pd.Series(hours, index=texts.index)

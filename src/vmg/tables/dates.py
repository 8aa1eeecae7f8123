"""Cells as people write dates, read as moments of any year and as days since 1970."""

from __future__ import annotations

from datetime import datetime

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from vmg.tables.values import naive_moments, plain, to_texts

__all__ = ["DATE_FORMATS", "day_of_week", "day_of_year", "find_date_format", "looks_like_dates", "to_dates", "to_days"]

DATE_FORMATS = (
    "ISO8601",
    *(
        f"{day}{time}"
        for day in ("%m/%d/%Y", "%d/%m/%Y", "%d.%m.%Y", "%d-%m-%Y", "%m-%d-%Y", "%Y/%m/%d")
        for time in ("", " %H:%M", " %H:%M:%S", " %I:%M %p", " %I:%M:%S %p")
    ),
    "%d %b %Y",
    "%b %d, %Y",
)
DATE_LIKE = r".*\d{4}.*\d.*|.*\d.*\d{4}.*"  # a year of four digits and something else
FAR_YEAR = r"(?<!\d)(?:0\d{3}|1[0-5]\d\d|16[0-6]\d|167[0-7]|226[2-9]|22[7-9]\d|2[3-9]\d\d|[3-9]\d{3})(?!\d)"
TRIED_FIRST = 100  # cells that rule out most formats
MICROSECONDS = 86_400_000_000  # of a day


def looks_like_dates(column: pd.Series) -> bool:
    """Whether every cell that is not missing has a year and something else."""
    given = to_texts(column).dropna().astype(str)
    return not given.empty and bool(given.str.fullmatch(DATE_LIKE).all())


def find_date_format(column: pd.Series) -> str | None:
    """The format that reads every cell that is not missing as a date; None if there is none."""
    column = plain(column)
    if pd.api.types.is_datetime64_any_dtype(column):
        return DATE_FORMATS[0]
    if not looks_like_dates(column):
        return None
    given = to_texts(column).dropna().astype(str)
    for form in DATE_FORMATS:
        if all(to_dates(cells, form).notna().all() for cells in (given[:TRIED_FIRST], given)):
            return form
    return None


def to_dates(column: pd.Series, date_format: str) -> pd.Series:
    """Cells as moments in UTC, without a zone, to the microsecond; NaT where missing or not in the format.

    Microseconds reach any year that people write; nanoseconds, which pandas prefers, reach from 1677 to 2262.
    """
    column = plain(column)
    if pd.api.types.is_datetime64_any_dtype(column):
        return pd.Series(naive_moments(column), index=column.index)
    texts = to_texts(column)
    near = pd.to_datetime(texts, format=date_format, errors="coerce", utc=True)
    moments = naive_moments(near)
    far = texts.notna().to_numpy() & np.isnat(moments)
    far[far] = texts[far].astype(str).str.contains(FAR_YEAR, regex=True)
    if far.any():
        read = {text: _read_far(text, date_format) for text in texts[far].unique()}
        moments[far] = np.array([read[text] for text in texts[far]], dtype="datetime64[us]")
    return pd.Series(moments, index=column.index)


def _read_far(text: str, date_format: str) -> np.datetime64:
    """A moment of a year that nanoseconds do not reach; NaT where it is not in the format."""
    try:
        if date_format == DATE_FORMATS[0]:
            moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
        else:
            moment = datetime.strptime(text, date_format)
    except ValueError:
        return np.datetime64("NaT")
    offset = moment.utcoffset()
    naive = np.datetime64(moment.replace(tzinfo=None), "us")
    return naive if offset is None else naive - np.timedelta64(offset)


def to_days(moments: pd.Series) -> pd.Series:
    """Days since 1970, with their fractions; NaN where missing."""
    return pd.Series(_count(moments, 1) / MICROSECONDS, index=moments.index)


def day_of_year(moments: pd.Series) -> NDArray[np.float64]:
    """From 1, the first of January; NaN where missing."""
    days = moments.to_numpy().astype("datetime64[D]")
    place = (days - days.astype("datetime64[Y]")).astype(np.float64)
    return np.where(np.isnat(days), np.nan, place + 1)


def day_of_week(moments: pd.Series) -> NDArray[np.float64]:
    """From 0, a Monday; NaN where missing."""
    return (_count(moments, MICROSECONDS) + 3) % 7  # 1970 began on a Thursday


def _count(moments: pd.Series, microseconds: int) -> NDArray[np.float64]:
    """Whole units since 1970."""
    values = moments.to_numpy()
    return np.where(np.isnat(values), np.nan, values.astype(np.int64) // microseconds)

"""Cells as people write dates and times of day, read as timestamps of any year, days since 1970, and hours."""

from __future__ import annotations

import re
from datetime import datetime

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from vmg.tables.cells import NUMBER, naive_moments, plain, to_texts
from vmg.tables.wording import TableError

__all__ = [
    "DATE_FORMATS",
    "check_date_format",
    "day_of_week",
    "day_of_year",
    "find_date_format",
    "looks_like_dates",
    "looks_like_times",
    "to_dates",
    "to_days",
    "to_hours",
]

DATE_FORMATS = (
    "ISO8601",
    *(
        f"{day}{time}"
        for day in ("%m/%d/%Y", "%d/%m/%Y", "%d.%m.%Y", "%d-%m-%Y", "%m-%d-%Y", "%Y/%m/%d")
        for time in ("", " %H:%M", " %H:%M:%S", " %I:%M %p", " %I:%M:%S %p")
    ),
    *("%m/%d/%y", "%d/%m/%y", "%d.%m.%y", "%d-%m-%y"),
    *("%d %b %Y", "%b %d, %Y", "%d %B %Y", "%B %d, %Y", "%d-%b-%Y"),
    "%Y%m%d",
)
DATE_LIKE = r".*\d{4}.*\d.*|.*\d.*\d{4}.*|\d{1,2}[/.-]\d{1,2}[/.-]\d{2}"  # a year of four digits and more, or 31/12/21
COMPACT = r"(?:18|19|20|21)\d\d(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])"  # 20211231
COMPACT_RANGE = (18_000_101, 21_991_231)
FAR_YEAR = r"(?<!\d)(?:0\d{3}|1[0-5]\d\d|16[0-6]\d|167[0-7]|226[2-9]|22[7-9]\d|2[3-9]\d\d|[3-9]\d{3})(?!\d)"
MIN_DATE_SHARE = 0.9  # of the cells that must be dates for the rest to count as missing
MIN_TOLERANT_CELLS = 20  # with fewer, one strange cell is more than a slip
TRIED_FIRST = 200  # cells that rule out most formats
MICROSECONDS = 86_400_000_000  # of a day
DIRECTIVES = re.compile(r"(%[YymdbBjHIMSfp]|[^%])*")
MAX_FORMAT = 40  # characters of a format that a user gives


def check_date_format(date_format: str) -> str:
    """The format itself; a TableError where dates cannot be read with it."""
    good = date_format in DATE_FORMATS or (
        len(date_format) <= MAX_FORMAT
        and DIRECTIVES.fullmatch(date_format)
        and re.search("%[Yy]", date_format)
        and len(set(re.findall("%.", date_format))) == date_format.count("%")
    )
    if not good:
        raise TableError(f"a date format must be like %d/%m/%Y, with each part once; got '{date_format}'")
    return date_format


def looks_like_dates(column: pd.Series) -> bool:
    """Whether nearly every cell that is not missing has a year and something else, or is like 20211231."""
    if pd.api.types.is_numeric_dtype(plain(column)):
        first, last = COMPACT_RANGE
        values = plain(column).dropna()
        possible = len(values) > 0 and first <= values.min() and values.max() <= last
        return possible and bool(to_texts(values).astype(str).str.fullmatch(COMPACT).all())
    given = to_texts(column).dropna().astype(str)
    if given.empty or given.str.fullmatch(NUMBER).mean() > 1 - MIN_DATE_SHARE:  # 123412 is a number and not a month
        return not given.empty and _enough(given.str.fullmatch(COMPACT))
    return _enough(given.str.fullmatch(DATE_LIKE))


def _enough(good: pd.Series) -> bool:
    """Whether the cells that are not good are few enough to be slips."""
    share = MIN_DATE_SHARE if len(good) >= MIN_TOLERANT_CELLS else 1.0
    return bool(len(good)) and bool(good.mean() >= share)


def find_date_format(column: pd.Series, day_first: bool | None = None) -> str | None:
    """The format that reads the most cells as dates; None if none reads nearly all of them.

    All rows have a say: 31/12/2021 in any of them rules out that the month comes first. Where every row leaves both
    open, ``day_first`` decides; where it is None, the reading in which rows are in order of time does, and then the
    month comes first in 1/2/2021.
    """
    column = plain(column)
    if pd.api.types.is_datetime64_any_dtype(column):
        return DATE_FORMATS[0]
    if not looks_like_dates(column):
        return None
    given = to_texts(column).dropna().astype(str)
    compact = bool(given.str.fullmatch(COMPACT).mean() >= MIN_DATE_SHARE)
    tried = [form for form in DATE_FORMATS if (form == "%Y%m%d") is compact]
    first = {form: int(to_dates(given[:TRIED_FIRST], form).notna().sum()) for form in tried}
    likely = [form for form in tried if first[form] >= 0.5 * max(first.values()) > 0]
    counts = {form: int(to_dates(given, form).notna().sum()) for form in likely}
    best = [form for form in likely if counts[form] == max(counts.values())]
    if not best or not _enough(to_dates(given, best[0]).notna()):
        return None
    return best[0] if len(best) == 1 else _break_tie(given, best, day_first)


def _break_tie(given: pd.Series, forms: list[str], day_first: bool | None) -> str:
    """One of several formats that read the same cells."""
    if day_first is None:
        in_order = [form for form in forms if to_dates(given, form).dropna().is_monotonic_increasing]
        return in_order[0] if len(in_order) == 1 else forms[0]
    wanted = [form for form in forms if form.startswith("%d") is day_first]
    return wanted[0] if wanted else forms[0]


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
    """The day of the year from 1, the first of January; NaN where missing."""
    days = moments.to_numpy().astype("datetime64[D]")
    place = (days - days.astype("datetime64[Y]")).astype(np.float64)
    return np.where(np.isnat(days), np.nan, place + 1)


def day_of_week(moments: pd.Series) -> NDArray[np.float64]:
    """The day of the week from 0, a Monday; NaN where missing."""
    return (_count(moments, MICROSECONDS) + 3) % 7  # 1970 began on a Thursday


def _count(moments: pd.Series, microseconds: int) -> NDArray[np.float64]:
    """Whole units since 1970."""
    values = moments.to_numpy()
    return np.where(np.isnat(values), np.nan, values.astype(np.int64) // microseconds)


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

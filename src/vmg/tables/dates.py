"""Dates and times of day as people write them: timestamps of any year, days since 1970, and hours."""

from __future__ import annotations

import re
from datetime import datetime

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from vmg.tables.cells import LONGEST_VALUE, MIN_SHARE, NUMBER, Cells, TableError, full_matches, kept, naive_timestamps

__all__ = [
    *("DATE_FORMATS", "check_date_format", "find_date_format", "looks_like_dates", "looks_like_times", "to_days"),
    *("to_hours", "to_timestamps"),
]

Timestamps = NDArray[np.datetime64]

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
DATE_LIKE = r"(?s).*\d{4}.*\d.*|.*\d.*\d{4}.*|\d{1,2}[/.-]\d{1,2}[/.-]\d{2}"  # a year and more, or 31/12/21
COMPACT = r"(?:18|19|20|21)\d\d(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])"  # 20211231
FAR_YEAR = re.compile(r"(?<!\d)(?:0\d{3}|1[0-5]\d\d|16[0-6]\d|167[0-7]|226[2-9]|22[7-9]\d|2[3-9]\d\d|[3-9]\d{3})(?!\d)")
MIN_TOLERANT_CELLS = 20  # with fewer, one strange cell is more than a slip
TRIED_FIRST = 200  # cells that rule out most formats
TIME = re.compile(r"(?i)([01]?\d|2[0-4]):([0-5]\d)(?::([0-5]\d)(?:\.\d+)?)?\s*(am|pm)?")
MICROSECONDS = 86_400_000_000  # of a day
DIRECTIVES = re.compile(r"(%[YymdbBjHIMSfp]|[^%])*")
MAX_FORMAT = 40  # characters of a format that a user gives


def check_date_format(date_format: str) -> None:
    """Raise a TableError unless dates can be read with a format."""
    good = date_format in DATE_FORMATS or (
        len(date_format) <= MAX_FORMAT
        and DIRECTIVES.fullmatch(date_format)
        and re.search("%[Yy]", date_format)
        and len(set(re.findall("%.", date_format))) == date_format.count("%")
    )
    if not good:
        raise TableError(f"a date format must be like %d/%m/%Y, with each part once; got '{date_format}'")


def looks_like_dates(cells: Cells) -> bool:
    """Whether nearly every cell that is not missing has a year and something else, or is like 20211231."""
    if cells.is_numeric:
        values = cells.values[~np.isnan(cells.values)]
        possible = len(values) > 0 and values.min() >= 18_000_101 and values.max() <= 21_991_231
        return possible and bool(full_matches(cells.arrow, COMPACT).all())
    if cells.share(full_matches(cells.arrow, NUMBER)) > 1 - MIN_SHARE:  # 123412 is a number and not a month
        return _enough(cells, full_matches(cells.arrow, COMPACT))
    return _enough(cells, full_matches(cells.arrow, DATE_LIKE))


def _enough(cells: Cells, good: NDArray[np.bool_]) -> bool:
    """Whether the cells whose levels are not good are few enough to be slips."""
    n = int(cells.counts.sum())
    return n > 0 and cells.share(good) >= (MIN_SHARE if n >= MIN_TOLERANT_CELLS else 1.0)


def find_date_format(cells: Cells, day_first: bool | None = None) -> str | None:
    """The format that reads the most cells as dates; None if none reads nearly all of them.

    All rows have a say: 31/12/2021 in any of them rules out that the month comes first. Where every row leaves both
    open, ``day_first`` decides; where it is None, the reading in which rows are in order of time does, and then the
    month comes first in 1/2/2021.
    """
    if cells.is_time:
        return DATE_FORMATS[0]
    forms = _best_formats(cells)
    if len(forms) < 2:
        return forms[0] if forms else None
    if day_first is None:
        given = {form: to_days(to_timestamps(cells, form)) for form in forms}
        in_order = [form for form, days in given.items() if (np.diff(days[~np.isnan(days)]) >= 0).all()]
        return in_order[0] if len(in_order) == 1 else forms[0]
    wanted = [form for form in forms if form.startswith("%d") is day_first]
    return wanted[0] if wanted else forms[0]


@kept
def _best_formats(cells: Cells) -> list[str]:
    """The formats that read the most cells, and nearly all of them."""
    if not looks_like_dates(cells):
        return []
    compact = cells.share(full_matches(cells.arrow, COMPACT)) >= MIN_SHARE
    tried = [form for form in DATE_FORMATS if (form == "%Y%m%d") is compact]
    first = {form: int((~np.isnat(_level_timestamps(cells, form, TRIED_FIRST))).sum()) for form in tried}
    likely = [form for form in tried if first[form] >= 0.5 * max(first.values()) > 0]
    good = {form: ~np.isnat(_level_timestamps(cells, form)) for form in likely}
    counts = {form: int(cells.counts[good[form]].sum()) for form in likely}
    best = [form for form in likely if counts[form] == max(counts.values())]
    return best if best and _enough(cells, good[best[0]]) else []


@kept
def to_timestamps(cells: Cells, date_format: str) -> Timestamps:
    """Cells as timestamps in UTC, without a zone, to the microsecond; NaT where missing or not in the format.

    Microseconds reach any year that people write; nanoseconds, which pandas prefers, reach from 1677 to 2262.
    """
    if cells.is_time:
        return naive_timestamps(cells.column)
    return cells.spread(_level_timestamps(cells, date_format), np.datetime64("NaT"))


@kept
def _level_timestamps(cells: Cells, date_format: str, n_levels: int | None = None) -> Timestamps:
    """The first levels as timestamps; those of years that nanoseconds do not reach are read one by one."""
    texts = cells.levels[:n_levels]
    short = pd.Series([text if len(text) <= LONGEST_VALUE else None for text in texts], dtype=object)
    times = naive_timestamps(pd.to_datetime(short, format=date_format, errors="coerce", utc=True))
    for k in np.flatnonzero(np.isnat(times) & short.notna().to_numpy()):
        if FAR_YEAR.search(texts[k]):
            times[k] = _read_far(texts[k], date_format)
    return times


def _read_far(text: str, date_format: str) -> np.datetime64:
    """A timestamp of a year that nanoseconds do not reach; NaT where it is not in the format."""
    try:
        if date_format == DATE_FORMATS[0]:
            time = datetime.fromisoformat(text.replace("Z", "+00:00"))
        else:
            time = datetime.strptime(text, date_format)
    except ValueError:
        return np.datetime64("NaT")
    offset = time.utcoffset()
    naive = np.datetime64(time.replace(tzinfo=None), "us")
    return naive if offset is None else naive - np.timedelta64(offset)


def to_days(times: ArrayLike) -> NDArray[np.float64]:
    """Days since 1970, with their fractions; NaN where missing."""
    values = np.asarray(times).astype("datetime64[us]")
    return np.where(np.isnat(values), np.nan, values.astype(np.int64) / MICROSECONDS)


# -- times of day ----------------------------------------------------------------------------------------------------


def looks_like_times(cells: Cells) -> bool:
    """Whether nearly every cell that is not missing is like 14:30, 14:30:05 or 2:30 pm."""
    if cells.is_numeric or cells.is_time:
        return False
    return cells.n_given > 0 and cells.share(full_matches(cells.arrow, TIME.pattern)) >= MIN_SHARE


@kept
def to_hours(cells: Cells) -> NDArray[np.float64]:
    """Hours since midnight, with their fractions; NaN where missing or no time of day."""
    return cells.spread(np.array([_hours(text) for text in cells.levels], float), np.nan)


def _hours(text: str) -> float:
    parts = TIME.fullmatch(text[: LONGEST_VALUE + 1])
    if parts is None:
        return float("nan")
    hour, minute, second = (float(part or 0) for part in parts.groups()[:3])
    if parts[4]:
        hour = hour % 12 + 12 * (parts[4].lower() == "pm")
    return hour + minute / 60 + second / 3600

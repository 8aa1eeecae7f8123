"""Cells as people write numbers, dates and times of day.

Numbers have thousands, decimals, currency, percent, brackets and one unit a column; what a comma between digits means
is one convention for a whole table, decided from all of its columns. Dates and times are read as timestamps of any
year, days since 1970, and hours.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import ArrayLike, NDArray

from vmg.tables.cells import LONGEST_VALUE, NUMBER, Cells, TableError, full_matches, kept, naive_timestamps

__all__ = [
    *("DATE_FORMATS", "MIN_SHARE", "CommaVotes", "check_date_format", "count_comma_votes", "find_date_format"),
    *("find_units", "has_decimal_commas", "looks_like_dates", "looks_like_times", "split_mark", "to_days", "to_hours"),
    *("to_numbers", "to_timestamps"),
]

Array = NDArray[np.float64]
Timestamps = NDArray[np.datetime64]

THOUSANDS = r"[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d+)?"  # 1,234,567.8, and not 0,125
DOT_THOUSANDS = r"[+-]?[1-9]\d{0,2}(\.\d{3})+"  # 1.234.567, where a comma is the decimal point
DECIMAL_COMMA = r"[+-]?(\d{1,3}(\.\d{3})+|\d+),\d+"  # 1.234.567,8
SURELY_THOUSANDS = r"[+-]?[1-9]\d{0,2}((,\d{3}){2,}(\.\d+)?|,\d{3}\.\d+)"  # 1,234,567 and 1,234.5
SURELY_DOT_THOUSANDS = r"[+-]?[1-9]\d{0,2}(\.\d{3}){2,}"
DIGITS_AND_MARKS = r"[+-]?[\d.,]+([eE][+-]?\d+)?"
INFINITE = r"(?i)[+-]?(inf|infinity|∞)"
CURRENCY = re.compile(r"^([+-]?)\s*[$€£¥]\s*|\s*[%€$£¥]$")  # $12, 12 €, 12 %
CURRENCY_SIGNS = [*"$€£¥"]
SIGN = re.compile(r"[$€£¥%]")
BRACKETS = re.compile(r"^\(\s*([^()+-][^()]*)\)$")  # (1,234) is -1,234 in accounts
INNER_SPACE = re.compile(r"(?<=\d)[\s'](?=\d{3}(\D|$))")  # 1 234 567 and 1'234'567
UNICODE_MINUS = "\u2212"
UNIT = re.compile(r"(.*?[\d.,)])\s*([^\W\d_]{1,12}[²³]?(?:/[^\W\d_]{1,6}[²³]?)?)", re.DOTALL)  # 3.5 km, 12 km/h
MIN_SHARE = 0.9  # of the cells that must be numbers, dates, times or in one unit for the rest to count as missing
VOTING_TEXTS = 20_000
UNITS = re.compile(
    "[mcdk]?m|in|inch|ft|yd|mi|miles?|m?g|kg|t|lbs?|oz|[mc]?l|k|mio|bn|m?s|sec|min|h|hrs?|(day|week|month|year)s?"
)
"""Words that surely are units, so that cells with several of them are no categories."""


@kept
def to_numbers(cells: Cells, decimal_comma: bool | None = None, unit: str | None = None) -> Array:
    """Cells as numbers, also 1,234.5 and (12) and 12 % and $3; NaN where missing or not a number.

    ``decimal_comma`` None asks this column alone. Where ``unit`` is given, it may follow the number, as in 3.5 km, and
    a number with another one is none. A number without any is taken to be in the unit, but not beside percents: 0.8
    may be 80 %. Infinite numbers, and those beyond the range of floating point, are missing in training rows.
    """
    if cells.is_numeric:
        values = cells.values
    else:
        comma = has_decimal_commas(cells) if decimal_comma is None else decimal_comma
        of_levels, marks = _level_values(cells, comma), _written(cells)[1]
        bare, currency = marks == "", np.isin(marks, CURRENCY_SIGNS)
        if unit is None:
            good = bare | currency | (marks == "%")
        else:
            good = (marks == unit) | (bare & ((unit != "%") | (of_levels == 0))) | (currency & (unit == ""))
        of_levels = np.where(good, of_levels, np.nan)
        words = full_matches(cells.arrow, INFINITE)
        of_levels[words] = [-np.inf if text.startswith("-") else np.inf for text in cells.levels[words]]
        values = cells.spread(of_levels, np.nan)
    if cells.training and np.isinf(values).any():
        values = np.where(np.isinf(values), np.nan, values)
    return values


@kept
def _level_values(cells: Cells, decimal_comma: bool) -> Array:
    """Each level as a number in one of the two conventions, whatever its unit; NaN where it is none."""
    bare, _ = _written(cells)
    grouped = full_matches(bare, f"{DECIMAL_COMMA}|{DOT_THOUSANDS}" if decimal_comma else THOUSANDS)
    if grouped.any():
        points = pc.replace_substring(bare, "." if decimal_comma else ",", "")
        bare = pc.if_else(pa.array(grouped), pc.replace_substring(points, ",", "."), bare)
    good = full_matches(bare, NUMBER)
    values = np.full(len(good), np.nan)
    values[good] = bare.filter(pa.array(good)).cast(pa.float64()).to_numpy()
    return values


@kept
def _written(cells: Cells) -> tuple[pa.Array, NDArray[Any]]:
    """The levels without their units and signs, and these; both are empty for words.

    Only what is no plain number is taken apart, one by one.
    """
    texts = cells.arrow
    simple = full_matches(texts, DIGITS_AND_MARKS)
    complicated = pc.match_substring_regex(texts, r"\pN").to_numpy(zero_copy_only=False) & ~simple
    parts = [split_mark(text) for text in texts.filter(pa.array(complicated)).to_pylist()]
    marks = np.full(len(texts), "", dtype=object)
    marks[complicated] = [mark for _, mark in parts]
    numbers = pa.array([number for number, _ in parts], pa.string())
    return pc.replace_with_mask(pc.if_else(pa.array(simple), texts, ""), pa.array(complicated), numbers), marks


def split_mark(text: str) -> tuple[str, str]:
    """A number without its currency, percent sign, unit, spaces between thousands and brackets; and that mark."""
    mark = ""
    if with_unit := UNIT.fullmatch(text):
        text, mark = with_unit[1], with_unit[2]
    elif sign := SIGN.search(text):
        mark = sign[0]
    text = BRACKETS.sub(r"-\1", text.replace(UNICODE_MINUS, "-"))
    text = INNER_SPACE.sub("", CURRENCY.sub(r"\1", text)).strip()
    if not text.isascii():  # digits of other scripts
        text = re.sub(r"\d", lambda digit: str(int(digit[0])), text).encode(errors="replace").decode()
    return text, mark


# -- units -----------------------------------------------------------------------------------------------------------


@kept
def find_units(cells: Cells) -> tuple[str, list[str]]:
    """The word after the numbers of a column, as in 3.5 km, or their sign; and the units of one in several of them.

    The first is empty, and so is the second, where cells do not agree or have none.
    """
    counts: Counter[str] = Counter()
    if not (cells.is_numeric or cells.is_time):
        bare, marks = _written(cells)
        for k in np.flatnonzero(full_matches(bare, DIGITS_AND_MARKS)):
            counts[marks[k]] += int(cells.counts[k])
    enough, units = MIN_SHARE * cells.n_given, sorted(filter(None, counts))
    for unit in units:
        if counts[unit] >= enough:
            return unit, []
    if sum(counts.values()) < enough:
        return "", []
    signs = [unit for unit in units if SIGN.fullmatch(unit)]
    words = [unit for unit in units if unit not in signs]
    if len(words) > 1 and sum(counts[word] for word in words) >= enough:
        return "", words if all(UNITS.fullmatch(word.lower()) for word in words) else []
    if len(signs) > 1 and counts[""] < enough:
        return "", signs
    if signs == ["%"] and counts["%"] > (1 - MIN_SHARE) * cells.n_given:
        return "", ["%", "no sign"]
    return units[0] if len(units) == 1 and units[0] in CURRENCY_SIGNS else "", []


# -- decimal marks ---------------------------------------------------------------------------------------------------


class CommaVotes(NamedTuple):
    """Columns whose cells are numbers only with decimal commas, only with decimal points, or with either."""

    comma: list[str]
    point: list[str]
    either: list[str]

    def decide(self, separator: str | None = None) -> bool | None:
        """Whether a comma is the decimal point; None where no cell has one.

        The larger number of columns wins. Where cells leave both open, as in 3,707, a file whose cells are separated
        by semicolons has decimal commas: they are why it has semicolons.
        """
        if len(self.comma) != len(self.point):
            return len(self.comma) > len(self.point)
        return separator == ";" if self.comma or self.either else None


def count_comma_votes(columns: Mapping[str, Cells]) -> CommaVotes:
    """Ask each column of texts whether its commas can only be one thing."""
    votes = CommaVotes([], [], [])
    kinds = THOUSANDS, DECIMAL_COMMA, NUMBER, DOT_THOUSANDS
    texts = {name: c for name, c in columns.items() if not (c.is_numeric or c.is_time or c.is_category)}
    for name, cells in texts.items():
        bare = _written(cells)[0][:VOTING_TEXTS]
        thousands, decimals, points, dotted = (full_matches(bare, kind) for kind in kinds)
        if not len(bare) or (thousands | decimals | points | dotted).mean() < MIN_SHARE:
            continue
        has_point = pc.match_substring(bare, ".").to_numpy(zero_copy_only=False)
        comma = (decimals & ~thousands) | full_matches(bare, SURELY_DOT_THOUSANDS)
        point = (has_point & points & ~dotted) | full_matches(bare, SURELY_THOUSANDS)
        if comma.any() or point.any():
            (votes.comma if comma.sum() > point.sum() else votes.point).append(name)
        elif thousands.any():
            votes.either.append(name)
    return votes


def has_decimal_commas(cells: Cells) -> bool:
    """Whether a comma is the decimal point, as far as one column alone can tell."""
    return bool(count_comma_votes({"": cells}).decide())


# -- dates -----------------------------------------------------------------------------------------------------------

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

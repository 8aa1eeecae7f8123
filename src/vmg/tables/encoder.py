"""A whole table as numbers: the kind of each column found on training rows, kept for all rows to come."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from vmg.model_file import from_fields
from vmg.tables.cells import Cells, CellTable, TableError, count, full_matches, listing
from vmg.tables.columns import (
    KINDS,
    CategoryColumn,
    Column,
    DateColumn,
    NumberColumn,
    Reading,
    TableChoices,
    ValueColumn,
    column_from_document,
)
from vmg.tables.dates import find_date_format, looks_like_dates
from vmg.tables.files import MISSING
from vmg.tables.numbers import count_comma_votes, find_units

__all__ = ["TableEncoder", "decide_comma", "find_suspicions", "judge_trend"]

Array = NDArray[np.float64]

IDENTIFIER_NAME = re.compile(
    r"(.*[_\s.-])?(id|ids|index|idx|row|rownum|rownames?|uuid|guid|pk)|.*(?-i:[a-z0-9]I[Dd])|(user|customer|order|client|item)id",
    re.IGNORECASE,
)
"""Names of columns that hold identifiers; customerId and userid are among them."""

FEW_REPEATS = 0.5  # share of different values above which whole numbers with such a name are identifiers
BY_CHANCE = 0.25  # values of a row that may be flagged as outside though the row is like the training rows


@dataclass(frozen=True)
class TableEncoder:
    """Columns that are used, in order, and those that are not, with the reason.

    Make one with :meth:`fit`.
    """

    columns: tuple[Column, ...]
    dropped: Mapping[str, str]
    n_rows: int  # of the fit
    decimal_comma: bool = False

    @classmethod
    def fit(
        cls, frame: pd.DataFrame | CellTable, choices: TableChoices | None = None, *, target: str | None = None
    ) -> TableEncoder:
        """Find the kind of each column of ``frame``, which holds training rows.

        ``target`` is a column that only has a say in what commas mean.
        """
        table, choices = CellTable.of(frame, training=True), choices or TableChoices()
        comma = decide_comma(table, choices)
        day_first = day_comes_first(table, comma)
        columns: list[Column] = []
        dropped: dict[str, str] = {}
        for name in table.frame:
            if name == target:
                continue
            column = find_kind(table[name], Reading(comma, day_first, choices.date_format(name), choices.kind(name)))
            if isinstance(column, Column):
                columns.append(column)
            else:
                dropped[name] = column
        if not columns:
            reasons = "; ".join(f"'{name}' {reason}" for name, reason in dropped.items()) or "there are no columns"
            raise TableError(f"no column is left to learn from: {reasons}")
        return cls(tuple(columns), dropped, len(table), comma)

    def with_target(
        self, frame: pd.DataFrame | CellTable, target: Array, scale: Array | None = None, *, statistics: bool = True
    ) -> tuple[TableEncoder, Array]:
        """The encoder with what the target says of its columns, and the features of the training rows.

        Categories have target ``statistics``, which are, for each training row, of other folds: its own target is not
        in its features. Dates are a trend only where that predicts later rows better. ``target`` [N, outputs] is
        centred and of unit scale; ``scale`` [outputs] is that unit, None for classes.
        """
        table = CellTable.of(frame, training=True)
        columns, of_other_folds = list(self.columns), []
        for k, column in enumerate(columns):
            if statistics and isinstance(column, CategoryColumn):
                columns[k], effects = column.with_effects(table[column.name], target)
                of_other_folds.append(effects)
        encoder = replace(self, columns=tuple(columns))
        features = encoder.transform(table)
        if of_other_folds:
            features[:, np.isinf(encoder.feature_scales)] = np.hstack(of_other_folds)
        rows, kept = np.arange(len(features)), np.ones(features.shape[1], dtype=bool)
        if len(rows) > MOST_TREND_ROWS:
            rows = np.sort(np.random.default_rng(0).permutation(len(rows))[:MOST_TREND_ROWS])
        for k, column in enumerate(columns):
            if isinstance(column, DateColumn):
                place = encoder.feature_names.index(f"{column.name}{column.quantity}")
                trend, drift = judge_trend(features[rows], place, target[rows])
                kept[place] = trend
                columns[k] = replace(column, trend=trend, drift=[] if scale is None else (drift * scale).tolist())
        return replace(self, columns=tuple(columns)), features if kept.all() else features[:, kept]

    @property
    def column_names(self) -> list[str]:
        """Columns that a table must have."""
        return [column.name for column in self.columns]

    @property
    def feature_names(self) -> list[str]:
        """Names of the features, in the order of :meth:`transform`'s columns."""
        return [name for features in self.features_of.values() for name in features]

    @property
    def features_of(self) -> dict[str, list[str]]:
        """The features that each column of the table becomes."""
        return {column.name: list(column.feature_scales) for column in self.columns}

    @property
    def widths(self) -> NDArray[np.int64]:
        """How many features each column becomes."""
        return np.array([len(features) for features in self.features_of.values()], dtype=np.int64)

    @property
    def feature_scales(self) -> Array:
        """The distance in each feature that counts as one."""
        return np.array([scale for column in self.columns for scale in column.feature_scales.values()])

    @property
    def text_columns(self) -> dict[str, list[str]]:
        """Columns whose cells a file must give as they are written, each with words that are not missing in it.

        01 is not 1 in them, and a hyphen is not missing where training rows had it as a category.
        """
        texts = [column for column in self.columns if column.kind in ("category", "date", "time")]
        return {c.name: sorted(MISSING & {*c.known}) if isinstance(c, CategoryColumn) else [] for c in texts}

    def check(self, frame: pd.DataFrame | CellTable) -> CellTable:
        """The cells of a table; a TableError that names the columns which it lacks."""
        table = CellTable.of(frame)
        missing = [name for name in self.column_names if name not in table.frame.columns]
        if missing:
            raise TableError(
                f"the table lacks {count(len(missing), 'column')} that the model was fitted on: {listing(missing)}; "
                f"it has {listing(table.frame)}"
            )
        return table

    def transform(self, frame: pd.DataFrame | CellTable, *, clip: bool = False) -> Array:
        """Features of each row [N, D], all finite; columns that the encoder does not know are ignored.

        ``clip`` moves numbers, dates and times outside the training range to its ends.
        """
        table = self.check(frame)
        features = np.empty((len(table), len(self.feature_names)))
        each = (feature for column in self.columns for feature in column.transform(table[column.name], clip=clip))
        for place, feature in enumerate(each):
            features[:, place] = feature
        return features

    def marks(self, frame: pd.DataFrame | CellTable) -> list[dict[str, NDArray[np.bool_]]]:
        """The rows of each column that are ``missing``, ``unseen`` or ``outside``.

        Of the d values of a row like the n training rows, 2d/(n + 1) are beyond their ranges by chance. Where these are
        many, a slack leaves as many outside as ``BY_CHANCE``, if tails are exponential, and fewer if they are lighter.
        """
        table, n_values = self.check(frame), sum(isinstance(column, ValueColumn) for column in self.columns)
        slack = float(np.log(max(2 * n_values / (self.n_rows + 1) / BY_CHANCE, 1.0)))
        return [column.marks(table[column.name], slack) for column in self.columns]

    def extra_std(self, frame: pd.DataFrame | CellTable) -> Array | None:
        """How uncertain targets are beyond what is predicted, as dates leave their range: [N, outputs], or None."""
        table = self.check(frame)
        drifting = [column for column in self.columns if isinstance(column, DateColumn) and any(column.drift)]
        parts = [np.outer(column.days_beyond(table[column.name]), column.drift) for column in drifting]
        return np.sqrt(np.square(parts).sum(0)) if np.any(parts) else None

    def time_familiarity(self, frame: pd.DataFrame | CellTable) -> Array:
        """1 inside the dates of the training rows, 1/2 at a tenth of their range beyond them, [N]."""
        table = self.check(frame)
        familiarity = np.ones(len(table))
        for column in self.columns:
            if isinstance(column, DateColumn):
                tenth = max(0.1 * (column.high - column.low), 1.0)
                familiarity *= tenth / (tenth + column.days_beyond(table[column.name]))
        return familiarity

    def with_decimal(self, decimal_comma: bool) -> TableEncoder:
        """The encoder for tables that write numbers in the other convention."""
        change: dict[str, Any] = {"decimal_comma": decimal_comma}
        columns = (replace(one, **change) if isinstance(one, NumberColumn) else one for one in self.columns)
        return replace(self, columns=tuple(columns), **change)

    # -- saying what was done -----------------------------------------------------------------------------------------

    def describe(self) -> list[str]:
        """Short sentences about how the columns are read."""
        kinds = Counter(type(column) for column in self.columns)
        used = ", ".join(count(n, kind.kind, kind.plural) for kind, n in kinds.items())
        sentences = [f"Columns used: {len(self.columns)} ({used})."]
        sentences += [f"Column '{name}' dropped: {reason}." for name, reason in self.dropped.items()]
        if self.decimal_comma:
            sentences.append("Numbers read with decimal commas: 1,5 is one and a half.")
        holes = [f"'{c.name}' ({c.n_missing:,})" for c in self.columns if c.n_missing]
        if holes:
            sentences.append(f"Missing cells are marked, and predicted for what they may hold: {listing(holes)}.")
        return sentences + [note for column in self.columns for note in column.notes()]

    # -- saving -------------------------------------------------------------------------------------------------------

    def to_document(self) -> dict[str, Any]:
        """The encoder for a model file."""
        return {**vars(self), "columns": [{"kind": one.kind, **asdict(one)} for one in self.columns]}

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> TableEncoder:
        """The encoder that :meth:`to_document` described."""
        columns = tuple(column_from_document(column) for column in document["columns"])
        if len({column.name for column in columns}) < len(columns):
            raise ValueError("columns must have names of their own")
        return from_fields(cls, {**document, "columns": columns})


# -- kinds of columns and conventions of a table ----------------------------------------------------------------------


def find_kind(cells: Cells, reading: Reading) -> Column | str:
    """The fitted column, or why it is of no use."""
    if cells.holds_collections():
        return "its cells are lists or structures"
    if cells.n_given == 0:
        return "it has no values"
    if cells.n_distinct == 1 and cells.n_given == len(cells):
        return f"it is always '{cells.levels[0]}'"
    if reading.kind is not None:
        kind = KINDS[reading.kind]
        if asked := kind.fit(cells, reading):
            return asked
        how = kind.plural + (f" with the format {reading.date_format}" if reading.date_format else "")
        raise TableError(f"the column '{cells.name}' cannot be read as {how}; got {listing(cells.levels[:2])}")
    if pd.api.types.is_integer_dtype(cells.column) and IDENTIFIER_NAME.fullmatch(cells.name):
        if cells.n_distinct == len(cells):
            return "its numbers are all different, like row numbers"
        if cells.n_distinct > FEW_REPEATS * len(cells):
            return "its name and its many different numbers are those of identifiers (--categorical uses it)"
    if units := find_units(cells)[1]:
        return (
            f"its numbers are in several units, {listing(units)}; write them in one (--categorical takes them as words)"
        )
    are_digits = not cells.is_numeric and full_matches(cells.arrow, r"\d+").all()
    are_codes = are_digits and full_matches(cells.arrow, r"0\d+").any() and not looks_like_dates(cells)  # 01 is not 1
    for cls in (CategoryColumn,) if are_codes else KINDS.values():
        if fitted := cls.fit(cells, reading):
            return fitted
    if looks_like_dates(cells):
        example = listing(cells.levels[:1])
        return f"its texts look like dates in a format that is not known (--date-format tells it), such as {example}"
    return "its texts are all different, like identifiers"


def day_comes_first(table: CellTable, decimal_comma: bool) -> bool | None:
    """Whether dates of a table that could be either have the day first: as in those that cannot, or with commas."""
    decided = set()
    for cells in (table[name] for name in table.frame):
        if not cells.is_time:
            ways = {find_date_format(cells, day_first=way) for way in (True, False)}
            if len(ways) == 1 and (form := ways.pop()) is not None and re.match("%[md][/.-]", form):
                decided.add(form.startswith("%d"))
    if len(decided) == 1:
        return decided.pop()
    return True if decimal_comma else None


def decide_comma(table: CellTable, choices: TableChoices) -> bool:
    """Whether a comma is the decimal point: as the user says, as its file showed, or as its columns of texts do."""
    if choices.decimal_comma is not None:
        return choices.decimal_comma
    if (of_file := table.frame.attrs.get("decimal_comma")) is not None:
        return bool(of_file)
    return bool(count_comma_votes({name: table[name] for name in table.frame}).decide())


# -- trends -----------------------------------------------------------------------------------------------------------

MIN_TREND_ROWS, MOST_TREND_ROWS = 40, 5_000  # of larger tables, as many rows judge
SPLITS = (0.6, 0.7, 0.8)  # shares of the rows before each split; the next fifth of the rows is predicted
NOISE_STEPS, LEAST_NOISE = 10, 1e-6  # of the variance of the target
BETTER = 0.9  # of the error without a trend: one that gains less is left out, as networks extrapolate it blindly


def judge_trend(features: Array, place: int, target: Array) -> tuple[bool, Array]:
    """Whether the feature at ``place``, days, helps to predict later rows, and how fast errors grow with the days.

    Later rows are predicted from earlier ones by ridge regression, with the days and without. The growth [outputs], in
    units of ``target`` [N, outputs] for each day, is the largest of the splits. With few rows the days stay.
    """
    days, others = features[:, place], np.delete(features, place, axis=1)
    judged, squared_days = [], []
    for share in SPLITS:
        cut, end = np.quantile(days, [share, min(share + 0.2, 1.0)])
        before, after = days <= cut, (days > cut) & (days <= end)
        if before.sum() >= MIN_TREND_ROWS / 2 and after.sum() >= MIN_TREND_ROWS / 8:
            squared_days.append([np.mean((days[after] - cut) ** 2)])
            ways = (_ridge_errors(X[before], target[before], X[after], target[after]) for X in (features, others))
            judged.append([*ways])
    if not judged or len(days) < MIN_TREND_ROWS:
        return True, np.zeros(target.shape[1])
    earlier, later = np.moveaxis(np.array(judged), 2, 0)  # [splits, with days and without, outputs]
    with_days, without = later.mean(0).sum(-1)
    trend = bool(with_days < BETTER**2 * without)
    growth = (later - earlier)[:, 0 if trend else 1] / np.array(squared_days)
    return trend, np.sqrt(np.maximum(growth.max(0), 0.0))


def _ridge_errors(X: Array, y: Array, X_later: Array, y_later: Array) -> tuple[Array, Array]:
    """Mean squared errors [outputs] of ridge regression on the rows that it was fitted to, and on later rows.

    Slopes have the prior N(0, 1), so that the penalty is the variance of the noise, found by MacKay's fixed point: a
    penalty that is too large for the noise would leave errors that the columns explain.
    """
    mean, scale = X.mean(0), X.std(0)
    scale = np.where(scale > 1e-10 * np.abs(mean), scale, 1.0)
    Z, Z_later = (np.clip((part - mean) / scale, -10, 10) for part in (X, X_later))
    centre, noise = y.mean(0), 1.0
    sizes, turn = np.linalg.eigh(Z.T @ Z)
    sizes, along = np.maximum(sizes, 0.0)[:, None], turn.T @ (Z.T @ (y - centre))
    for _ in range(NOISE_STEPS):
        slopes = turn @ (along / (sizes + noise))
        squared = np.mean((y - centre - Z @ slopes) ** 2, 0)
        left_over = len(y) - np.sum(sizes / (sizes + noise))
        noise = float(np.clip(len(y) * squared.mean() / left_over, LEAST_NOISE, 1.0))
    return squared, np.mean((y_later - centre - Z_later @ slopes) ** 2, 0)


# -- suspicions about training rows -----------------------------------------------------------------------------------

MIN_SUSPICIOUS_ROWS = 20  # with fewer, anything may be chance
LEAK = 0.9995  # correlation with the target, of values or of their ranks
SAME = 1 - 1e-9  # correlation of two columns that differ by their unit alone
FAR = 10.0  # widths of all other values that lie between them and the few that are far
FEW = 0.005  # share of the values that may be far
MOST_COLUMNS = 500  # that are compared with each other


def find_suspicions(table: CellTable, encoder: TableEncoder, target: str, values: NDArray[Any]) -> list[str]:
    """Short sentences about the training rows ``table`` and their targets ``values``, numbers or classes."""
    if len(table) < MIN_SUSPICIOUS_ROWS:
        return []
    read = [column for column in encoder.columns if isinstance(column, NumberColumn | DateColumn)]
    numbers = {column.name: column.values(table[column.name]) for column in read}
    said = _far_values(f"The target '{target}'", values) if values.dtype.kind == "f" else []
    said += [remark for name, column in numbers.items() for remark in _far_values(f"Column '{name}'", column)]
    leaks = [name for name in encoder.column_names if _tells(numbers.get(name), table[name], values)]
    if leaks:
        said.append(
            f"{listing(leaks)} alone {'tells' if len(leaks) == 1 else 'tell'} the target '{target}' almost exactly. If "
            "not known before the target is, this is a leak: leave it out with --ignore."
        )
    pairs = _same_columns(table, encoder, numbers)
    said += [f"Columns '{a}' and '{b}' say the same; one of them is enough." for a, b in pairs]
    counters = [c.name for c in read if isinstance(c, NumberColumn) and (np.diff(numbers[c.name]) == 1).all()]
    return said + ([f"{listing(counters)} counts the rows; if that means nothing, use --ignore."] if counters else [])


def _far_values(what: str, values: Array) -> list[str]:
    """Whether a few values are many widths of all others away from them."""
    given = np.sort(values[np.isfinite(values)])
    few = max(1, int(FEW * len(given)))
    if len(given) < MIN_SUSPICIOUS_ROWS:
        return []
    ordered = given / (np.abs(given).max() or 1.0)
    low, high = ordered[few], ordered[-few - 1]
    far = given[(ordered > high + FAR * (high - low)) | (ordered < low - FAR * (high - low))]
    if low == high or not len(far):
        return []
    question = "is it a slip?" if len(far) == 1 else "are they slips?"
    shown = ", ".join(f"{value:.6g}" for value in far[:3])
    return [f"{what} has {count(len(far), 'value')} far from all others ({shown}); {question}"]


def _tells(numbers: Array | None, cells: Cells, values: NDArray[Any]) -> bool:
    """Whether a column alone, of ``numbers`` or else of words, gives the target away."""
    are_values = values.dtype.kind == "f"
    if are_values and numbers is None:
        return False
    cell = cells.texts if numbers is None else np.where(np.isfinite(numbers), numbers, np.nan)
    pairs = pd.DataFrame({"cell": cell, "target": values}).dropna()
    n_different = pairs["cell"].nunique()
    if len(pairs) < MIN_SUSPICIOUS_ROWS or (are_values and n_different < MIN_SUSPICIOUS_ROWS / 2):
        return False
    if are_values:
        pairs /= pairs.abs().max()
        return any(abs(pairs.corr(way).iloc[0, 1]) > LEAK for way in ("pearson", "spearman"))
    if numbers is None:
        return 1 < n_different <= len(pairs) / 4 and pairs.groupby("cell")["target"].nunique().max() == 1
    ends = pairs.groupby("target")["cell"].agg(["min", "max"]).sort_values("min").to_numpy()  # of each class
    return len(pairs) > 0.9 * len(values) and bool((ends[:-1, 1] < ends[1:, 0]).all())


def _same_columns(table: CellTable, encoder: TableEncoder, numbers: dict[str, Array]) -> list[tuple[str, str]]:
    """Pairs of columns that hold the same, or the same in another unit."""
    pairs: list[tuple[str, str]] = []
    seen: dict[int, str] = {}
    for name in encoder.column_names:
        key = hash(np.nan_to_num(numbers[name], nan=np.inf).tobytes() if name in numbers else tuple(table[name].texts))
        if key in seen:
            pairs.append((seen[key], name))
        seen.setdefault(key, name)
    same = {name for _, name in pairs}
    whole = {name: cells for name, cells in numbers.items() if np.isfinite(cells).all() and name not in same}
    if 1 < len(whole) <= MOST_COLUMNS:
        rows = np.stack([cells / (np.abs(cells).max() or 1.0) for cells in whole.values()])
        names, alike = list(whole), np.abs(np.corrcoef(rows)) > SAME
        pairs += [(names[a], names[b]) for a, b in np.argwhere(np.triu(alike, 1))]
    return pairs

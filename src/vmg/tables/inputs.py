"""Rows and target of a table as estimators read them: features, unknown cells, numbers or classes.

Unknown cells have the values of training rows, some of which are kept; the distance to these is a row's familiarity.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from vmg.prediction import ClassPrediction, GLMPrediction, MixturePrediction, class_mixture, row_pieces
from vmg.tables.cells import MIN_SHARE, Cells, CellTable, TableError, count, full_matches, listing
from vmg.tables.columns import LARGEST, Column, NumberColumn, TableChoices
from vmg.tables.encoder import TableEncoder
from vmg.tables.numbers import find_units, has_decimal_commas, to_numbers

__all__ = [
    *("Candidates", "EncodedRows", "ReferenceRows", "TableInputs", "Target", "Task", "draw_shares", "find_candidates"),
    *("fit_target", "keep_rows", "known_labels", "label_positions", "require_numbers", "row_digests"),
    "standard_target",
]

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

LEARNED_ROWS = 100.0  # training rows that lack a value, at which the mark of it and draws have half each
SEED = 0
MAX_ROWS = 512
MAX_CELLS = 2**19
MAX_DIGESTS = 4096
TYPICAL = 0.9  # share of the training rows that count as wholly familiar
NEAR, ANY = 32, 32  # training rows that an unknown cell is taken from
ANY_SHARE = 0.2  # of the probability that those of any place have
ROWS_AT_ONCE = 256  # whose comparisons stay in the cache of a core
MIXED_AT_ONCE = 64  # rows with unknown cells that are predicted together, each as a mixture
MIXED_CELLS = 2**24  # most features of the candidates of such rows, of which each has up to 128


@dataclass(frozen=True)
class ReferenceRows:
    """A sample of the training rows as features."""

    features: Array  # [R, D]
    given: Mask  # [R, columns]: whether a row has a value in a column of the table
    scales: Array  # [D]: the distance in each feature that counts as one; infinite for features that do not count
    widths: NDArray[np.int64]  # [columns]: how many features each column became
    digests: NDArray[np.int64]  # of training rows with their targets, at most some thousands of them
    typical: float = 1.0  # the distance to the nearest other row that nine of ten training rows keep within

    @classmethod
    def sample(cls, encoder: TableEncoder, features: Array, given: Mask, digests: NDArray[np.int64]) -> ReferenceRows:
        """Keep some of the training rows, at random."""
        rng, most = np.random.default_rng(SEED), int(np.clip(MAX_CELLS // max(features.shape[1], 1), 16, MAX_ROWS))
        rows = np.sort(rng.permutation(len(features))[:most])
        digests = digests[np.sort(rng.permutation(len(digests))[:MAX_DIGESTS])]
        kept = cls(features[rows], given[rows], encoder.feature_scales, encoder.widths, digests)
        if len(rows) < 2:
            return kept
        apart = kept._nearest(kept.features, np.ones(kept.features.shape, dtype=np.bool_), apart=True)
        return replace(kept, typical=float(np.quantile(apart, TYPICAL)) or 1.0)

    def familiarity(self, features: Array, unknown: Mask) -> Array:
        """How near rows [N, D] are to the training rows, from 0 to 1.

        1 for a row that is as near to a training row as nine of ten training rows are to another one; 1/k for a row k
        times as far. Columns of ``unknown`` cells [N, columns] do not count.
        """
        distance = self._nearest(features, np.repeat(~unknown, self.widths, axis=1))
        return self.typical / np.maximum(distance, self.typical)

    def _nearest(self, features: Array, known: Mask, *, apart: bool = False) -> Array:
        """Distance to the nearest reference row in ``known`` features; ``apart``: another one than the row itself.

        Σ w(x − r)² is compared as Σ wr² − 2Σ wxr, two products of matrices, and then taken of the nearest row alone, so
        that nothing cancels in it.
        """
        counted = np.isfinite(self.scales)
        centre, scales = self.features[:, counted].mean(0), self.scales[counted]
        rows, mine = (features[:, counted] - centre) / scales, (self.features[:, counted] - centre) / scales
        weight = known[:, counted].astype(np.float64)
        squares, distances = (mine**2).T, np.empty(len(rows))
        for start in range(0, len(rows), ROWS_AT_ONCE):
            x, w = rows[start : start + ROWS_AT_ONCE], weight[start : start + ROWS_AT_ONCE]
            compared = w @ squares - 2 * (w * x) @ mine.T
            if apart:
                compared[np.arange(len(x)), start + np.arange(len(x))] = np.inf
            squared = (w * (x - mine[compared.argmin(1)]) ** 2).sum(1)
            # as if unknown columns were as far away as the known ones
            distances[start : start + ROWS_AT_ONCE] = np.sqrt(squared * (counted.sum() / np.maximum(w.sum(1), 1)))
        return distances

    def candidates(self, row: Array, shares: Array) -> tuple[Array, Array]:
        """Rows [K, D] that may stand for ``row``, some of whose cells are unknown, and their weights [K].

        ``shares`` are those of :func:`draw_shares` for the row. Unknown cells come from training rows that have them.
        Half are those that are nearest in the other columns, with a Gaussian weight and four fifths of the probability,
        half are any others. On held-out rows of the development tables this was better than any training row alike and
        than the nearest alone. The rest of a share is left to the cells as they are marked.
        """
        unknown, marked = shares > 0, (shares > 0) & (shares < 1)
        able = np.flatnonzero(self.given[:, unknown].all(1))
        if not len(able):
            able = np.arange(len(self.features))
        counted, here = np.isfinite(self.scales), np.repeat(unknown, self.widths)
        known = counted & ~here
        squared = (((self.features[able][:, known] - row[known]) / self.scales[known]) ** 2).sum(1)
        near = np.argsort(squared, kind="stable")[:NEAR]
        bandwidth = max(squared[near[0]], max(known.sum() / max(counted.sum(), 1), 1e-3) * self.typical**2, 1e-12)
        weight = np.exp(-0.5 * (squared[near] - squared[near[0]]) / bandwidth)
        weights = np.concatenate([(1 - ANY_SHARE) * weight / weight.sum(), np.full(ANY, ANY_SHARE / ANY)])
        others = np.random.default_rng(SEED).choice(len(able), ANY)
        drawn = np.where(here, self.features[able[np.concatenate([near, others])]], row)
        if not marked.any():
            return drawn, weights
        share = shares[marked].max()
        n_left = len(drawn) if (shares == 1).any() else 1  # where nothing else is drawn, all are the same
        left = np.where(np.repeat(marked, self.widths), row, drawn[:n_left])
        left_weights = (1 - share) * weights[:n_left] / weights[:n_left].sum()
        return np.concatenate([drawn, left]), np.concatenate([share * weights, left_weights])

    def with_digests(self, digests: NDArray[np.int64]) -> ReferenceRows:
        """The same rows with digests of more rows that the model has seen, as many as are kept."""
        whole = np.union1d(self.digests, digests)
        return replace(self, digests=np.random.default_rng(SEED).permutation(whole)[:MAX_DIGESTS])


def row_digests(features: Array, target: NDArray[Any]) -> NDArray[np.int64]:
    """A number for each row and its target, the first of several, that another row hardly ever has."""
    texts = target.reshape(len(target), -1)[:, 0].astype(str)
    digests = [
        hashlib.blake2b(row.tobytes() + text.encode(), digest_size=8).digest()
        for row, text in zip(np.ascontiguousarray(features), texts, strict=True)
    ]
    return np.frombuffer(b"".join(digests), dtype=np.int64).copy()


class Candidates(NamedTuple):
    """Rows that may stand for those at positions ``rows``: ``features`` [G, K, D] with ``weights`` [G, K]."""

    rows: NDArray[np.int64]
    features: Array
    weights: Array


def draw_shares(columns: Sequence[Column], marks: Sequence[Mapping[str, Mask]]) -> Array:
    """The share of each cell's probability [N, columns] that is drawn from training rows: 0 where the cell is known.

    It is 1 where training rows never lacked a value: nobody knows what its absence means. Where n of them did, the
    networks have learned that, the better the more there were, and n / (n + ``LEARNED_ROWS``) is left to the mark.
    """
    shares = [
        np.where(mark["missing"], LEARNED_ROWS / (LEARNED_ROWS + column.n_missing), mark.get("unseen", 0.0))
        for column, mark in zip(columns, marks, strict=True)
    ]
    return np.stack(shares, axis=1)


def find_candidates(features: Array, shares: Array, reference: ReferenceRows) -> Candidates | None:
    """Candidates for the rows of ``features`` [N, D] that have unknown cells; None where all are known.

    ``shares`` are those of :func:`draw_shares`.
    """
    rows = np.flatnonzero(shares.any(1))
    if not len(rows):
        return None
    of_rows = [reference.candidates(features[row], shares[row]) for row in rows]
    width = max(len(weights) for _, weights in of_rows)
    filled = np.stack([np.pad(own, ((0, width - len(own)), (0, 0)), "edge") for own, _ in of_rows])
    return Candidates(rows, filled, np.stack([np.pad(weights, (0, width - len(weights))) for _, weights in of_rows]))


# -- rows and how they are read ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EncodedRows:
    """Rows as features [N, D]; ``shares`` [N, columns] say how much of a cell is drawn from training rows.

    ``shares`` is None where every cell is known. ``extra_std`` [N, outputs] is what dates outside their range leave
    open; None where there are none.
    """

    features: Array
    shares: Array | None = None
    extra_std: Array | None = None

    def __len__(self) -> int:
        return len(self.features)

    def __getitem__(self, rows: Any) -> EncodedRows:
        others = (None if part is None else part[rows] for part in (self.shares, self.extra_std))
        return EncodedRows(self.features[rows], *others)

    def pieces(self) -> Iterator[slice]:
        """Rows that are predicted together, in memory that does not grow with them."""
        at_once = int(np.clip(MIXED_CELLS // (128 * self.features.shape[1]), 1, MIXED_AT_ONCE))
        for piece in row_pieces(len(self)):
            mixed = [] if self.shares is None else piece.start + np.flatnonzero(self.shares[piece].any(1))
            ends = [piece.start, *mixed[at_once::at_once], min(piece.stop, len(self))]
            yield from (slice(int(start), int(end)) for start, end in pairwise(ends))


@dataclass(frozen=True)
class TableInputs:
    """How the columns of a table become features, and training rows that unknown cells are drawn from.

    Where every column was a number in every training row, they are ``plain``: features are the rows themselves.
    """

    encoder: TableEncoder
    reference: ReferenceRows
    plain: bool = False

    @classmethod
    def fit(
        cls,
        table: CellTable,
        values: NDArray[Any],
        choices: TableChoices,
        *,
        target: str | None = None,
        target_statistics: bool = True,
    ) -> tuple[TableInputs, Array]:
        """Read the columns of training rows with the targets ``values``, and give back their features too.

        The column ``target``, if the table has it, is none of the inputs. Without ``target_statistics`` categories have
        none: where all rows are read again, the statistics of a row would have its own target.
        """
        encoder = TableEncoder.fit(table, choices, target=target)
        encoder, features = encoder.with_target(table, *standard_target(values), statistics=target_statistics)
        return cls(encoder, keep_rows(encoder, table, values)), features

    @classmethod
    def of_numbers(cls, X: Array, names: Sequence[str]) -> TableInputs:
        """Columns that are numbers in every training row, as they are."""
        facts = np.stack([np.median(X, 0), X.min(0), X.max(0), np.where(X.std(0) > 0, X.std(0), 1.0)], axis=1).tolist()
        columns = tuple(NumberColumn(name, 0, *of_column) for name, of_column in zip(names, facts, strict=True))
        encoder = TableEncoder(columns, {}, len(X))
        given, digests = np.ones(X.shape, dtype=np.bool_), np.zeros(0, dtype=np.int64)
        return cls(encoder, ReferenceRows.sample(encoder, X, given, digests), plain=True)

    def read_numbers(self, X: Array) -> EncodedRows:
        """Rows of a plain table, in which missing numbers are NaN."""
        missing = np.isnan(X)
        median = np.array([column.median for column in self.encoder.columns if isinstance(column, NumberColumn)])
        return EncodedRows(np.where(missing, median, X), missing.astype(np.float64))

    def read(self, frame: pd.DataFrame | CellTable) -> EncodedRows:
        """Rows of any table that has the columns of the fit."""
        table = CellTable.of(frame)
        shares = draw_shares(self.encoder.columns, self.encoder.marks(table))
        return EncodedRows(self.encoder.transform(table), shares, self.encoder.extra_std(table))

    def distribution(self, rows: EncodedRows, predict: Callable[[Array], Any]) -> Any:
        """The predictive distribution of each row; one with unknown cells is a mixture over their values.

        ``predict`` gives the distributions of features.
        """
        whole = predict(rows.features)
        candidates = None if rows.shares is None else find_candidates(rows.features, rows.shares, self.reference)
        is_continuous = not isinstance(whole, ClassPrediction | GLMPrediction)
        if candidates is not None:
            parts = predict(candidates.features.reshape(-1, rows.features.shape[1]))
            mix = class_mixture if isinstance(whole, ClassPrediction) else MixturePrediction
            whole = mix(whole, parts, candidates.rows, candidates.weights)
        return whole.widened(rows.extra_std) if is_continuous and rows.extra_std is not None else whole

    # -- saving -------------------------------------------------------------------------------------------------------

    def to_document(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and a document for a model file."""
        kept = {name: getattr(self.reference, name) for name in ("features", "given", "digests")}
        kept["given"] = kept["given"].astype(np.uint8)
        tensors = {f"reference.{name}": torch.from_numpy(np.ascontiguousarray(part)) for name, part in kept.items()}
        reference = {"typical": self.reference.typical}
        return tensors, {"encoder": self.encoder.to_document(), "plain": self.plain, "reference": reference}

    @classmethod
    def from_document(cls, tensors: Mapping[str, Tensor], document: Mapping[str, Any]) -> TableInputs:
        """The inputs that :meth:`to_document` described."""
        encoder, plain = TableEncoder.from_document(document["encoder"]), document["plain"]
        features, given, digests = (tensors[f"reference.{name}"].numpy() for name in ("features", "given", "digests"))
        types = [str(part.dtype) for part in (features, given, digests)]
        kept = ReferenceRows(features, given.astype(bool), encoder.feature_scales, encoder.widths, digests)
        shapes = (len(features), len(kept.scales)), (len(features), len(kept.widths)), (len(digests),)
        if types != ["float64", "uint8", "int64"] or (features.shape, given.shape, digests.shape) != shapes:
            raise ValueError("reference rows must have the features of the columns")
        typical = document["reference"]["typical"]
        if not (len(features) and np.isfinite(features).all() and isinstance(typical, float) and 0 < typical < np.inf):
            raise ValueError("reference rows must be finite")
        numbers = all(isinstance(column, NumberColumn) and not column.n_missing for column in encoder.columns)
        if not isinstance(plain, bool) or (plain and not numbers):
            raise ValueError(f"plain must be true or false, and true for numbers alone; got {plain!r:.40}")
        return cls(encoder, replace(kept, typical=typical), plain)


def keep_rows(encoder: TableEncoder, rows: pd.DataFrame | CellTable, values: NDArray[Any]) -> ReferenceRows:
    """The training rows that a model keeps; of a large table only some rows are encoded."""
    table = CellTable.of(rows, training=True)
    if len(table) > MAX_DIGESTS:
        some = np.sort(np.random.default_rng(SEED).permutation(len(table))[:MAX_DIGESTS])
        table, values = CellTable(table.frame.iloc[some], training=True), values[some]
    features, given = encoder.transform(table), np.column_stack([~marks["missing"] for marks in encoder.marks(table)])
    return ReferenceRows.sample(encoder, features, given, row_digests(features, values))


# -- the column to predict --------------------------------------------------------------------------------------------

Task = Literal["regression", "classification"]

FEW_VALUES = 7
"""A number with at most this many different values is taken for a class; counts mostly have more."""

SMALLEST = 1e-150  # of a target's largest value: squares of its noise would be zero

MOST_EFFECTS = 10  # classes whose shares describe a category
MIN_CLASS_ROWS = 2  # on average; with fewer, texts are no classes
WHOLE_NUMBER = r"0|-?[1-9]\d{0,14}"  # as it is written without marks, such as classes: "01" is not "1"


class Target(NamedTuple):
    """The target of training rows, none missing."""

    task: Task
    values: NDArray[Any]
    decimal_comma: bool
    reason: str
    unit: str = ""


def fit_target(cells: Cells, task: Task | None = None, decimal_comma: bool | None = None) -> Target:
    """Values of a target column without holes, and the task (None: inferred) with the reason for it."""
    name, n_rows, n_distinct = cells.name, len(cells), cells.n_distinct
    if cells.holds_collections():
        raise TableError(f"the target '{name}' must hold one number or text a row; got lists or structures")
    unit, several = find_units(cells)
    if several and task != "classification":
        raise TableError(f"the target '{name}' is in several units, {listing(several)}; write them in one")
    if n_distinct == 1:
        raise TableError(f"the target '{name}' is always '{cells.levels[0]}': there is nothing to learn")
    comma = has_decimal_commas(cells) if decimal_comma is None else decimal_comma
    values, is_boolean = to_numbers(cells, comma, unit), pd.api.types.is_bool_dtype(cells.column)
    finite, may_be_number = np.isfinite(values), not (is_boolean or cells.is_category)
    many = n_distinct > FEW_VALUES or 2 * n_distinct > n_rows
    if task == "regression" or (task is None and many and may_be_number and finite.mean() >= MIN_SHARE):
        require_numbers(cells, values)
    is_numeric, reason = may_be_number and bool(finite.all()), f"Task: {task}, as asked."
    if task is None:
        task = "regression" if is_numeric and many else "classification"
        kind = "a number" if is_numeric else "true or false" if is_boolean else "text"
        reason = f"Task: {task}, as the target '{name}' is {kind} with {n_distinct:,} different values."
        if is_numeric and (not many or n_distinct <= 2 * FEW_VALUES):
            other = "classification" if many else "regression"
            reason = f"{reason[:-1]} (--task {other} takes it otherwise)."
    if task == "regression":
        largest = float(np.abs(values).max())
        if not SMALLEST <= largest <= LARGEST:
            raise TableError(
                f"the target '{name}' must have its largest value between {SMALLEST:g} and {LARGEST:g} in size; got "
                f"{largest:g}. Use another unit."
            )
        return Target(task, values, comma, reason, unit)
    if n_rows < MIN_CLASS_ROWS * n_distinct:
        raise TableError(
            f"the target '{name}' has {n_distinct:,} different values in {count(n_rows, 'row')}, too many to be "
            "classes" + ("; use the task regression" if is_numeric else " and they are not numbers")
        )
    labels = cells.levels.astype(str)
    if not is_boolean and full_matches(cells.arrow, WHOLE_NUMBER).all():
        labels = labels.astype(np.int64)
    return Target(task, labels[cells.codes], comma, reason)


def standard_target(values: NDArray[Any]) -> tuple[Array, Array | None]:
    """Numbers [N] or [N, outputs] in units of their spread, and this unit [outputs]; or 0/1 of classes, and None.

    All have mean zero: [N, outputs].
    """
    if values.dtype.kind == "f":
        columns, tiny = values.reshape(len(values), -1), np.finfo(np.float64).tiny
        largest = np.maximum(np.abs(columns).max(0), tiny)
        columns = columns / largest
        columns = columns - columns.mean(0)
        spread = columns.std(0)
        return columns / np.maximum(spread, tiny), spread * largest
    classes, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    frequent = np.sort(np.argsort(-counts, kind="stable")[:MOST_EFFECTS])
    chosen = frequent[1:] if len(classes) == 2 else frequent
    shares = (places[:, None] == chosen).astype(np.float64)
    return shares - shares.mean(0), None


def require_numbers(cells: Cells, values: NDArray[np.float64]) -> None:
    """Raise a TableError that names the cells of a target which could not be read as finite numbers."""
    strange = cells.column[~np.isfinite(values)]
    if len(strange):
        raise TableError(
            f"the target '{cells.name}' must hold finite numbers; got {listing(strange.map(str).unique())} in "
            f"{count(len(strange), 'row')} of {len(cells):,}"
        )


def label_positions(cells: Cells, classes: NDArray[Any]) -> NDArray[np.int64]:
    """The place of each cell among ``classes``, which are in order; -1 where it is none of them, or missing."""
    is_text = classes.dtype.kind in "UO"
    labels = cells.levels.astype(str) if is_text else to_numbers(Cells(pd.Series(cells.levels, dtype=object)))
    place = np.searchsorted(classes, labels).clip(max=len(classes) - 1)
    return cells.spread(np.where(classes[place] == labels, place, -1), -1)


def known_labels(cells: Cells, classes: NDArray[Any]) -> NDArray[Any]:
    """Classes of rows to come, written as ``classes`` are."""
    place = label_positions(cells, classes)
    unknown = place < 0
    if unknown.any():
        strange = listing(cells.column[unknown].map(str).unique()[:3])
        raise TableError(f"the target '{cells.name}' must be one of {listing(classes)}; got {strange}")
    return classes[place]

"""Rows of a table as estimators read them: features, unknown cells, and predictions that average over these.

Predictions become a table with columns and flags.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from torch import Tensor

from vmg.prediction import ClassPrediction, GLMPrediction, MixturePrediction, class_mixture, row_pieces
from vmg.prediction.conformal import conformal_interval
from vmg.tables.cells import CellTable, TableError, count
from vmg.tables.choices import TableChoices
from vmg.tables.columns import NumberColumn
from vmg.tables.encoder import TableEncoder
from vmg.tables.missing import ReferenceRows, draw_shares, find_candidates, row_digests
from vmg.tables.target import centred_target, target_scale

__all__ = [
    "FLAGS",
    "EncodedRows",
    "Outside",
    "TableInputs",
    "column_relevance",
    "flag_texts",
    "keep_rows",
    "mark_not_finite",
    "named_after",
    "refuse_outside",
    "split_flags",
    "tabulate",
    "tabulate_numbers",
]

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Outside = Literal["flag", "clip", "error"]

MIXED_AT_ONCE = 64  # rows with unknown cells that are predicted together, each as a mixture
MIXED_CELLS = 2**24  # most features of the candidates of such rows, of which each has up to 128

FLAGS = "flags"
POINTS = ("mean", "median", "class")  # columns that have the target's own name
NOT_FINITE = "not-finite"
SEPARATOR = ";"


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

    Parameters
    ----------
    encoder : TableEncoder
        The columns.
    reference : ReferenceRows
        Some of the training rows.
    plain : bool
        Whether every column was a number in every training row, so that features are the rows themselves.
    """

    encoder: TableEncoder
    reference: ReferenceRows
    plain: bool = False

    @classmethod
    def fit(
        cls, table: CellTable, values: NDArray[Any], choices: TableChoices, *, target: str | None = None
    ) -> tuple[TableInputs, Array]:
        """Read the columns of training rows with the targets ``values``, and give back their features too.

        The column ``target``, if the table has it, is none of the inputs.
        """
        encoder = TableEncoder.fit(table, choices, target=target)
        encoder, features = encoder.with_target(table, centred_target(values), target_scale(values))
        return cls(encoder, keep_rows(encoder, table, values)), features

    @classmethod
    def of_numbers(cls, X: Array, names: Sequence[str]) -> TableInputs:
        """Columns that are numbers in every training row, as they are."""
        low, high, median, spread = X.min(0), X.max(0), np.median(X, 0), X.std(0)
        columns = tuple(
            NumberColumn(name, 0, float(median[k]), float(low[k]), float(high[k]), float(spread[k]) or 1.0)
            for k, name in enumerate(names)
        )
        encoder = TableEncoder(columns, {}, len(X))
        given, digests = np.ones(X.shape, dtype=np.bool_), np.zeros(0, dtype=np.int64)
        reference = ReferenceRows.sample(X, given, encoder.feature_scales, encoder.widths, digests, seed=0)
        return cls(encoder, reference, plain=True)

    def read_numbers(self, X: Array) -> EncodedRows:
        """Rows of a plain table, in which missing numbers are NaN."""
        missing = np.isnan(X)
        median = np.array([column.median for column in self.encoder.columns if isinstance(column, NumberColumn)])
        return EncodedRows(np.where(missing, median, X), missing.astype(np.float64))

    def read(self, frame: pd.DataFrame | CellTable) -> EncodedRows:
        """Rows of any table that has the columns of the fit."""
        table = CellTable.of(frame)
        shares = draw_shares(self.encoder.columns, self.encoder.marks(table), len(table))
        return EncodedRows(self.encoder.transform(table), shares, self.encoder.extra_std(table))

    def distribution(self, rows: EncodedRows, predict: Callable[[Array], Any]) -> Any:
        """The predictive distribution of each row; one with unknown cells is a mixture over their values.

        ``predict`` gives the distributions of features.
        """
        whole = predict(rows.features)
        candidates = None if rows.shares is None else find_candidates(rows.features, rows.shares, self.reference)
        is_continuous = not isinstance(whole, ClassPrediction | GLMPrediction)
        if candidates is not None:
            parts = predict(candidates.flat)
            mix = class_mixture if isinstance(whole, ClassPrediction) else MixturePrediction
            whole = mix(whole, parts, candidates.rows, candidates.weights)
        return whole.widened(rows.extra_std) if is_continuous and rows.extra_std is not None else whole

    # -- saving -------------------------------------------------------------------------------------------------------

    def to_document(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and a document for a model file."""
        tensors, reference = self.reference.to_state()
        return tensors, {"encoder": self.encoder.to_document(), "plain": self.plain, "reference": reference}

    @classmethod
    def from_document(cls, tensors: Mapping[str, Tensor], document: Mapping[str, Any]) -> TableInputs:
        """The inputs that :meth:`to_document` described."""
        encoder, plain = TableEncoder.from_document(document["encoder"]), document["plain"]
        reference = ReferenceRows.from_state(tensors, document["reference"], encoder.feature_scales, encoder.widths)
        numbers = all(isinstance(column, NumberColumn) and not column.n_missing for column in encoder.columns)
        if not isinstance(plain, bool) or (plain and not numbers):
            raise ValueError(f"plain must be true or false, and true for numbers alone; got {plain!r:.40}")
        return cls(encoder, reference, plain)


def keep_rows(encoder: TableEncoder, rows: pd.DataFrame | CellTable, values: NDArray[Any]) -> ReferenceRows:
    """The training rows that a model keeps."""
    rows = CellTable.of(rows, training=True)
    features = encoder.transform(rows)
    given = np.column_stack([~of_column["missing"] for of_column in encoder.marks(rows)])
    return ReferenceRows.sample(
        features, given, encoder.feature_scales, encoder.widths, row_digests(features, values), seed=0
    )


# -- predictions in a table ------------------------------------------------------------------------------------------


def tabulate(prediction: Any, *how: Any) -> pd.DataFrame:
    """Predictions as a table; ``how`` are the arguments of :func:`tabulate_numbers`, which classes do not have."""
    if isinstance(prediction, ClassPrediction):
        return tabulate_classes(prediction)
    return tabulate_numbers(prediction, *how)


def tabulate_numbers(
    prediction: Any,
    conformal_scores: NDArray[Any] | None,
    coverage: float,
    point: str = "mean",
    above: Sequence[float] = (),
) -> pd.DataFrame:
    """A point, the standard deviation and its parts, the interval and probabilities of each row, and of each output."""
    lower, upper = np.moveaxis(conformal_interval(prediction, conformal_scores, coverage), -1, 0)
    columns = {
        point: getattr(prediction, point),
        "std": prediction.std,
        "lower": lower,
        "upper": upper,
        "noise": prediction.aleatoric_std,
        "ignorance": prediction.epistemic_std,
        **{f"above_{bound:g}": prediction.probability(above=bound) for bound in above},
    }
    if prediction.mean.ndim == 1:
        return pd.DataFrame(columns)
    return pd.DataFrame({f"{name}_{c}": column for name, of in columns.items() for c, column in enumerate(of.T)})


def tabulate_classes(prediction: ClassPrediction) -> pd.DataFrame:
    """The likeliest class of each row, the probability of each class, and how unsure they are."""
    probabilities = {
        f"probability_{label}": column
        for label, column in zip(prediction.classes, prediction.probabilities.T, strict=True)
    }
    return pd.DataFrame(
        {
            "class": prediction.label,
            **probabilities,
            "entropy": prediction.predictive_entropy,
            "noise": prediction.expected_entropy,
            "ignorance": prediction.mutual_information,
        }
    )


def named_after(target: str, predictions: pd.DataFrame) -> pd.DataFrame:
    """Predictions with columns named after the target, but for those that are about the row."""
    names = {name: target if name in POINTS else f"{target}_{name}" for name in predictions.columns}
    return predictions.rename(columns={**names, "familiarity": "familiarity", FLAGS: FLAGS})


# -- flags ------------------------------------------------------------------------------------------------------------


def refuse_outside(names: Sequence[str], marks: Sequence[Mapping[str, Mask]]) -> None:
    """Raise a TableError that says in which columns values are outside the range of the training rows."""
    n_outside = {name: int(of["outside"].sum()) for name, of in zip(names, marks, strict=True) if "outside" in of}
    where = ", ".join(f"'{name}' in {count(n, 'row')}" for name, n in n_outside.items() if n)
    if where:
        raise TableError(f"values must be inside the range of the training rows; they are outside in {where}")


def flag_texts(names: Sequence[str], marks: Sequence[Mapping[str, Mask]], n_rows: int) -> NDArray[Any]:
    """Flags of each row, such as "missing:area;unseen:city"; empty where there is nothing to say."""
    texts = np.full(n_rows, "", dtype=object)
    for name, found in zip(names, marks, strict=True):
        for kind, rows in found.items():
            texts[rows] += f"{SEPARATOR}{kind}:{name.replace(SEPARATOR, ' ')}"
    flagged = np.flatnonzero(texts)
    texts[flagged] = [text.removeprefix(SEPARATOR) for text in texts[flagged]]
    return texts


def mark_not_finite(predictions: pd.DataFrame) -> pd.DataFrame:
    """The predictions, with a flag where some number is not finite: it left the range of floating-point numbers."""
    numbers = predictions.select_dtypes("number").to_numpy(dtype=np.float64)
    rows = ~np.isfinite(numbers).all(1)
    if not rows.any():
        return predictions
    flags = predictions[FLAGS].to_numpy(dtype=object)
    flags[rows] = [text + (SEPARATOR if text else "") + NOT_FINITE for text in flags[rows]]
    return predictions.assign(**{FLAGS: flags})


def split_flags(text: str) -> list[str]:
    """The flags of a row one by one."""
    return text.split(SEPARATOR) if text else []


def column_relevance(encoder: TableEncoder, relevance: Array) -> dict[str, float]:
    """The relevance of each column from that of its features: their norm."""
    found, start = {}, 0
    for name, features in encoder.features_of.items():
        found[name] = float(np.linalg.norm(relevance[start : start + len(features)]))
        start += len(features)
    return found

"""Numbers behind a report, apart from its words: predictions of some rows, and scores of all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from vmg.estimators import TableModel
from vmg.math.distributions import Array
from vmg.prediction import ClassPrediction
from vmg.tables.cells import Cells, to_texts
from vmg.tables.columns import DateColumn, NumberColumn
from vmg.tables.inputs import label_positions
from vmg.tables.values import to_timestamps

__all__ = [
    "SEED",
    "SHOWN_ROWS",
    "Array",
    "Contents",
    "Positions",
    "choose",
    "extremes",
    "read_columns",
    "read_contents",
]

Positions = NDArray[np.int64]

SEED = 0  # of every subsample: the same table gives the same page
SHOWN_ROWS = 5_000  # rows behind the pictures,
SHOWN_DRAWS = 2**25  # or as many as give this many posterior draws of outputs, for the sake of memory
FEWEST_SHOWN = 400
CERTAIN_ROWS = 5
MOST_CLASSES = 6  # in one picture of effects


@dataclass(frozen=True)
class Contents:
    """Predictions of the rows that are shown, and the scores of all rows whose truth is known.

    ``scores`` and ``base``, those of the training targets' base rate, are what ``vmg evaluate`` gives; None and empty
    where no truth is known.
    """

    position: Positions  # [N], of the rows that are shown in the frame
    prediction: Any
    uncertainty: Array  # [N], standard deviation or entropy
    ignorance_share: Array  # [N], of the variance or the entropy
    truth: NDArray[Any]  # [N], numbers or places of classes; NaN or -1 where unknown
    known: Positions  # [K], shown rows whose truth is known
    scores: dict[str, float] | None
    base: dict[str, float]
    n_unknown_classes: int = 0  # rows with a class that the model has never seen

    @property
    def certain(self) -> Positions:
        """The most certain of the shown rows."""
        return extremes(self.uncertainty)[0]

    @property
    def shown_classes(self) -> list[int]:
        """Places of the classes in pictures of effects: the second of two, or of many the most frequent."""
        if not isinstance(self.prediction, ClassPrediction):
            return [0]
        probabilities = self.prediction.probabilities
        order = np.argsort(-probabilities.mean(0), kind="stable")
        return [1] if probabilities.shape[1] == 2 else sorted(order[:MOST_CLASSES].tolist())

    @property
    def uncertain(self) -> Positions:
        """The least certain of the shown rows."""
        return extremes(self.uncertainty)[1]


def read_contents(model: TableModel, frame: pd.DataFrame) -> Contents:
    """Predict rows of a frame to show, and score all whose truth is known."""
    one = model.filled_dist(frame.iloc[:1])
    in_memory = SHOWN_DRAWS // (one.samples.size if isinstance(one, ClassPrediction) else 1)
    position = choose(len(frame), min(SHOWN_ROWS, max(in_memory, FEWEST_SHOWN)))
    prediction = model.pred_dist(frame.iloc[position])
    has_target, n_strange = model.target in frame.columns, 0
    if isinstance(prediction, ClassPrediction):
        truth = np.full(len(frame), -1)
        if has_target:
            truth = label_positions(Cells(frame[model.target]), prediction.classes)
            n_strange = int(((truth < 0) & to_texts(frame[model.target]).notna().to_numpy()).sum())
        given = truth >= 0
        uncertainty, ignorance = prediction.predictive_entropy, prediction.mutual_information
        total = uncertainty
    else:
        truth = model.read_target(frame[model.target]) if has_target else np.full(len(frame), np.nan)
        given = np.isfinite(truth)
        uncertainty, ignorance = prediction.std, prediction.epistemic_std**2
        total = prediction.aleatoric_std**2 + ignorance
    usable = np.isfinite(total) & (total > 0)
    share = np.divide(ignorance, total, out=np.zeros(len(total)), where=usable)
    scores = model.evaluate(frame[given]) if given.any() else None
    base = model.evaluate_base_rate(frame[given]) if given.any() else {}
    shown = truth[position], np.flatnonzero(given[position]), scores, base
    return Contents(position, prediction, uncertainty, share, *shown, n_strange)


def choose(n: int, most: int, seed: int = SEED) -> Positions:
    """At most ``most`` of n positions, at random but always the same ones, in order."""
    if n <= most:
        return np.arange(n)
    return np.sort(np.random.default_rng(seed).choice(n, most, replace=False))


def extremes(uncertainty: Array) -> tuple[Positions, Positions]:
    """Positions of the most certain and the least certain rows, the most telling first; none is in both."""
    order = np.argsort(uncertainty, kind="stable")
    n = min(CERTAIN_ROWS, (len(order) + 1) // 2)
    return order[:n], order[n:][::-1][:n]


def read_columns(model: TableModel, frame: pd.DataFrame) -> pd.DataFrame:
    """The columns that the model uses, in their own types: floats, timestamps, texts or booleans.

    The encoder makes the same features of them as of the cells themselves.
    """
    read = {}
    for column in model.encoder.columns:
        cells = frame[column.name]
        if isinstance(column, NumberColumn):
            cells = column.values(Cells(cells))
        elif isinstance(column, DateColumn):
            cells = to_timestamps(Cells(cells), column.date_format)
        else:
            cells = to_texts(cells)
        read[column.name] = cells
    return pd.DataFrame(read, index=frame.index)

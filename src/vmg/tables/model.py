"""A table's model: encoder and estimator in one, from the columns as they are to predictions in a table."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast, get_args

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from torch import Tensor

from vmg import metrics
from vmg.estimators import PseudoDataClassifier, PseudoDataRegressor, VMGClassifier, VMGRegressor
from vmg.estimators.saving import from_state, to_state
from vmg.persistence import ModelFileError, write
from vmg.prediction import ClassPrediction, NumberPrediction, Prediction, row_pieces
from vmg.prediction.conformal import conformal_interval
from vmg.tables.encoder import TableEncoder, check_names
from vmg.tables.errors import TableError
from vmg.tables.phrases import count, listing
from vmg.tables.target import Task, fit_target, known_labels, require_numbers
from vmg.tables.values import to_numbers, to_texts
from vmg.training import Callback

__all__ = ["NumberPrediction", "TableModel", "mean_crps"]

Regressor = VMGRegressor | PseudoDataRegressor  # the second where a file is from before the first was what it is
Classifier = VMGClassifier | PseudoDataClassifier

MIN_ROWS = 5
MIN_CONFORMAL_ROWS = 19  # fewer cannot promise a coverage of 95 %
CRPS_DRAWS = 200


@dataclass(frozen=True)
class TableModel:
    """A fitted estimator that reads tables.

    Make one with :meth:`fit`, keep it with :meth:`save`, get it back with :func:`vmg.load`.

    Parameters
    ----------
    encoder : TableEncoder
        How columns become features.
    estimator : VMGRegressor or VMGClassifier
        Fitted on those features; a PseudoDataRegressor or PseudoDataClassifier in files of earlier versions.
    target : str
        The column that is predicted.
    task : {"regression", "classification"}
        What is predicted of it.
    decimal_comma : bool
        Whether a comma in the target is a decimal point.
    notes : sequence of str
        What was done with the training table, in short sentences.
    """

    encoder: TableEncoder
    estimator: Regressor | Classifier
    target: str
    task: Task
    decimal_comma: bool = False
    notes: tuple[str, ...] = ()

    # -- fitting ------------------------------------------------------------------------------------------------------

    @classmethod
    def fit(
        cls,
        frame: pd.DataFrame,
        target: str,
        *,
        task: Task | None = None,
        exclude: Sequence[str] = (),
        conformal: float = 0.0,
        options: Mapping[str, Any] | None = None,
        callbacks: Sequence[Callback] = (),
        tell: Callable[[str], None] | None = None,
    ) -> TableModel:
        """Fit to the rows of ``frame`` that have a target.

        Parameters
        ----------
        frame : DataFrame
            Numbers, texts, dates, booleans; cells may be missing.
        target : str
            The column to predict.
        task : {"regression", "classification"} or None
            None: inferred from the target.
        exclude : sequence of str
            Columns to leave out.
        conformal : float
            Share of rows set aside to calibrate intervals (regression only).
        options : mapping, optional
            Parameters of the estimator, such as ``{"n_members": 5}``.
        callbacks : sequence of callables
            Called with a :class:`~vmg.training.Progress` as training goes.
        tell : callable, optional
            Called with each sentence of ``notes`` before training starts.
        """
        _require_columns(frame, [target, *exclude])
        if target in exclude:
            raise TableError(f"the target '{target}' cannot be excluded")
        has_target = to_texts(frame[target]).notna()
        n_without = int((~has_target).sum())
        frame = frame[has_target]
        if len(frame) < MIN_ROWS:
            raise TableError(f"a fit needs at least {MIN_ROWS} rows with a target; got {len(frame)}")
        found = fit_target(frame[target], task)
        kind = VMGRegressor if found.task == "regression" else VMGClassifier
        estimator = kind(**(options or {}))
        inside, outside = _split(len(frame), conformal, found.task, estimator.random_state)
        columns = frame.drop(columns=[target, *exclude])
        encoder = TableEncoder.fit(columns.iloc[inside])

        notes = [found.reason]
        if n_without:
            notes.append(f"{count(n_without, 'row')} without a target left out.")
        if len(outside):
            notes.append(f"{count(len(outside), 'row')} set aside to calibrate intervals.")
        if found.decimal_comma:
            notes.append("The target has decimal commas.")
        if exclude:
            notes.append(f"Columns left out as asked: {listing(exclude)}.")
        notes += encoder.describe()
        if tell is not None:
            for note in notes:
                tell(note)

        estimator._callbacks = tuple(callbacks)
        try:
            estimator.fit(encoder.transform(columns.iloc[inside]), found.values[inside])
        finally:
            del estimator._callbacks
        if isinstance(estimator, VMGRegressor) and len(outside):
            estimator.conformalize(encoder.transform(columns.iloc[outside]), found.values[outside])
        return cls(encoder, estimator, target, found.task, found.decimal_comma, tuple(notes))

    # -- predicting ---------------------------------------------------------------------------------------------------

    def pred_dist(self, frame: pd.DataFrame) -> NumberPrediction | ClassPrediction:
        """The whole predictive distribution of each row."""
        return self.estimator.pred_dist(self.encoder.transform(frame))

    def predict_frame(self, frame: pd.DataFrame, coverage: float = 0.9) -> pd.DataFrame:
        """Predictions as a table with a row for each row of ``frame``.

        Regression: ``mean``, ``std``, the interval ``lower`` to ``upper`` that holds the target with probability
        ``coverage``, ``aleatoric_std`` (noise), ``epistemic_std`` (ignorance) and ``ignorance``, its share of the
        variance. Classification: the likeliest ``class``, the probability of each, ``entropy`` and
        ``mutual_information`` (ignorance) in nats.
        """
        if not 0 < coverage < 1:
            raise TableError(f"coverage must be between 0 and 1; got {coverage}")
        features = self.encoder.transform(frame)
        if not len(features):
            raise TableError("the table has no rows")
        describe = self._describe_numbers if self.task == "regression" else self._describe_classes
        parts = [describe(features[rows], coverage) for rows in row_pieces(len(features))]
        return pd.concat(parts, ignore_index=True).set_axis(frame.index)

    def _describe_numbers(self, rows: NDArray, coverage: float) -> pd.DataFrame:
        estimator = cast(Regressor, self.estimator)
        prediction = estimator.pred_dist(rows)
        lower, upper = conformal_interval(prediction, estimator.conformal_scores_, coverage).T
        return pd.DataFrame(
            {
                "mean": prediction.mean,
                "std": prediction.std,
                "lower": lower,
                "upper": upper,
                "aleatoric_std": prediction.aleatoric_std,
                "epistemic_std": prediction.epistemic_std,
                "ignorance": (prediction.epistemic_std / prediction.std) ** 2,
            }
        )

    def _describe_classes(self, rows: NDArray, coverage: float) -> pd.DataFrame:
        prediction = cast(Classifier, self.estimator).pred_dist(rows)
        probabilities = {
            f"probability_{label}": column
            for label, column in zip(prediction.classes, prediction.probabilities.T, strict=True)
        }
        return pd.DataFrame(
            {
                "class": prediction.label,
                **probabilities,
                "entropy": prediction.predictive_entropy,
                "mutual_information": prediction.mutual_information,
            }
        )

    # -- scoring ------------------------------------------------------------------------------------------------------

    def target_values(self, frame: pd.DataFrame) -> NDArray:
        """The true targets of rows that all have one: numbers, or classes as the estimator writes them."""
        _require_columns(frame, [self.target])
        column = frame[self.target]
        if isinstance(self.estimator, Classifier):
            return known_labels(column, self.estimator.classes_)
        numbers = to_numbers(column, self.decimal_comma)
        require_numbers(column, numbers.values)
        return numbers.values.to_numpy()

    def with_target(self, frame: pd.DataFrame) -> pd.DataFrame:
        """The rows of ``frame`` that have a target."""
        _require_columns(frame, [self.target])
        rows = frame[to_texts(frame[self.target]).notna()]
        if rows.empty:
            raise TableError(f"no row has a value in the target '{self.target}'")
        return rows

    def evaluate(self, frame: pd.DataFrame, coverage: float = 0.9) -> dict[str, float]:
        """Scores on rows with a known target; rows without are left out.

        Regression: ``rmse``, ``r2``, ``log_likelihood``, ``coverage`` and ``width`` of the intervals, ``crps``.
        Classification: ``accuracy``, ``log_likelihood``, ``brier``, ``ece``.
        """
        rows = self.with_target(frame)
        truth = self.target_values(rows)
        features = self.encoder.transform(rows)
        score = self._score_numbers if self.task == "regression" else self._score_classes
        return {"rows": len(rows), **score(features, truth, coverage)}

    def _score_numbers(self, features: NDArray, truth: NDArray, coverage: float) -> dict[str, float]:
        estimator = cast(Regressor, self.estimator)
        mean, log_prob, crps = (np.empty(len(truth)) for _ in range(3))
        interval = np.empty((len(truth), 2))
        for rows in row_pieces(len(truth)):
            prediction = estimator.pred_dist(features[rows])
            mean[rows], log_prob[rows] = prediction.mean, prediction.log_prob(truth[rows])
            crps[rows] = mean_crps(prediction, truth[rows])
            interval[rows] = conformal_interval(prediction, estimator.conformal_scores_, coverage)
        error, spread = metrics.rmse(truth, mean), float(np.std(truth))
        return {
            "rmse": error,
            "r2": 1 - (error / spread) ** 2 if spread > 0 else float("nan"),
            "log_likelihood": metrics.log_likelihood(log_prob),
            "crps": float(crps.mean()),
            "coverage": metrics.interval_coverage(truth, interval),
            "width": metrics.interval_width(interval),
        }

    def _score_classes(self, features: NDArray, truth: NDArray, coverage: float) -> dict[str, float]:
        estimator = cast(Classifier, self.estimator)
        probabilities = np.concatenate([estimator.predict_proba(features[rows]) for rows in row_pieces(len(truth))])
        labels = np.searchsorted(estimator.classes_, truth)
        chosen = np.maximum(probabilities[np.arange(len(labels)), labels], np.finfo(np.float64).tiny)
        return {
            "accuracy": 1 - metrics.error_rate(probabilities, labels),
            "log_likelihood": metrics.log_likelihood(np.log(chosen)),
            "brier": metrics.brier_score(probabilities, labels),
            "ece": metrics.expected_calibration_error(probabilities, labels),
        }

    # -- saving -------------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to one file, which :func:`vmg.load` reads."""
        tensors, document = to_state(self.estimator)
        write(
            path,
            tensors,
            {
                "holds": "TableModel",
                "target": self.target,
                "task": self.task,
                "decimal_comma": self.decimal_comma,
                "notes": list(self.notes),
                "encoder": self.encoder.to_document(),
                "estimator": document,
            },
        )

    @classmethod
    def from_state(cls, tensors: dict[str, Tensor], document: dict[str, Any]) -> TableModel:
        """The model in the contents of a file."""
        try:
            encoder = TableEncoder.from_document(document["encoder"])
            estimator = cast(Regressor | Classifier, from_state(tensors, document["estimator"]))
            target, task, comma = (document[key] for key in ("target", "task", "decimal_comma"))
            kind = Regressor if task == "regression" else Classifier
            notes = tuple(document["notes"])
            if task not in get_args(Task) or not isinstance(estimator, kind):
                raise ValueError(f"task must be that of the estimator {type(estimator).__name__}; got {task!r:.40}")
            if not (isinstance(target, str) and isinstance(comma, bool) and all(isinstance(n, str) for n in notes)):
                raise ValueError("target and notes must be texts, and decimal_comma true or false")
            n_features = len(encoder.feature_names)
            if n_features != estimator.n_features_in_:
                raise ValueError(f"columns must give {estimator.n_features_in_} features; got {n_features}")
        except ModelFileError:
            raise
        except Exception as error:  # a document may be wrong in any way
            raise ModelFileError(f"the file does not describe a whole model: {error!r}") from error
        return cls(encoder, estimator, target, task, comma, notes)


def mean_crps(prediction: NumberPrediction, y: NDArray) -> float:
    """Mean continuous ranked probability score of one output: by draws for a mixture, else from the distribution."""
    if isinstance(prediction, Prediction):
        return metrics.crps_from_samples(prediction.sample(CRPS_DRAWS, 0), y)
    return float(prediction.crps(y).mean())


def _require_columns(frame: pd.DataFrame, names: Sequence[str]) -> None:
    check_names(frame)
    missing = [name for name in names if name not in frame.columns]
    if missing:
        raise TableError(f"the table has no column {listing(missing)}; it has {listing(frame.columns)}")


def _split(n_rows: int, share: float, task: Task, seed: Any) -> tuple[NDArray, NDArray]:
    """Positions of the rows to fit to and of those to calibrate with, in their own order."""
    if not 0 <= share < 1:
        raise TableError(f"conformal must be a share of the rows from 0 to below 1; got {share}")
    if share == 0:
        return np.arange(n_rows), np.arange(0)
    if task != "regression":
        raise TableError("conformal calibrates intervals of regression; the task is classification")
    n_outside = round(share * n_rows)
    if n_outside < MIN_CONFORMAL_ROWS or n_rows - n_outside < MIN_ROWS:
        raise TableError(
            f"conformal needs at least {MIN_CONFORMAL_ROWS} rows to calibrate with and {MIN_ROWS} to fit to; "
            f"{share:g} of {count(n_rows, 'row')} leaves {n_outside} and {n_rows - n_outside}"
        )
    order = np.random.default_rng(seed).permutation(n_rows)
    return np.sort(order[n_outside:]), np.sort(order[:n_outside])

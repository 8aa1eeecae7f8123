"""A model beside baselines on held-out rows: base rate, linear model and boosted trees, with a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.model_selection import cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from vmg import metrics
from vmg.estimators import TableClassifier, TableModel
from vmg.tables.cells import Cells
from vmg.tables.target import Task, label_positions

__all__ = ["OWN", "Comparison", "FoldScores", "compare_fold", "join_folds"]

Array = NDArray[np.float64]
OWN = "vmg"
BASE_RATE = "base rate"
PENALTIES = (0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)
FOLDS = 3
SURE = 2.0  # standard errors of a difference that is not taken for chance


@dataclass(frozen=True)
class FoldScores:
    """Results of each method on each held-out row; ``losses`` are squared errors, or log losses of classes.

    Everything is JSON-able, so that a fold that is done can be kept.
    """

    losses: dict[str, list[float]] = field(default_factory=dict)
    log_probs: dict[str, list[float]] = field(default_factory=dict)
    hits: dict[str, list[float]] = field(default_factory=dict)  # right classes; truths inside vmg's intervals


def compare_fold(model: TableModel, fitted_rows: Any, held_rows: Any, coverage: float = 0.9) -> FoldScores:
    """Score a model on rows that it was not fitted to, and the baselines fitted to the same rows as it."""
    scores = FoldScores()
    if isinstance(model.estimator, TableClassifier):  # none can predict a class that no fitted row has
        held_rows = held_rows[label_positions(Cells(held_rows[model.target]), model.estimator.classes_) >= 0]
    parts = list(model.predictions_of(held_rows))
    truth = np.concatenate([y for _, y in parts])
    X, y = model.encoder.transform(fitted_rows), model.target_values(fitted_rows)
    X_held = model.encoder.transform(held_rows)
    if model.task == "classification":
        _add_classes(scores, OWN, np.concatenate([p.probabilities for p, _ in parts]), parts[0][0].classes, truth)
    else:
        interval = np.concatenate([part.interval(coverage) for part, _ in parts])
        mean = np.concatenate([part.mean for part, _ in parts])
        _add(scores, OWN, (mean - truth) ** 2, np.concatenate([part.log_prob(t) for part, t in parts]))
        scores.hits[OWN] = ((truth >= interval[:, 0]) & (truth <= interval[:, 1])).astype(float).tolist()
    for name, baseline in _baselines(classes=model.task == "classification").items():
        fitted = baseline.fit(X, y)
        if model.task == "classification":
            _add_classes(scores, name, fitted.predict_proba(X_held), fitted.classes_, truth)
            continue
        spread = float(np.sqrt(np.mean((_cross_predict(baseline, X, y) - y) ** 2))) or 1.0
        error = fitted.predict(X_held) - truth
        _add(scores, name, error**2, -0.5 * (error / spread) ** 2 - np.log(spread) - 0.5 * np.log(2 * np.pi))
    return scores


def _add(scores: FoldScores, name: str, loss: Array, log_prob: Array) -> None:
    scores.losses[name], scores.log_probs[name] = loss.tolist(), log_prob.tolist()


def _add_classes(scores: FoldScores, name: str, p: Array, classes: NDArray[Any], truth: NDArray[Any]) -> None:
    place = np.searchsorted(classes, truth)
    log_prob = metrics.label_log_prob(p, place)
    _add(scores, name, -log_prob, log_prob)
    scores.hits[name] = (p.argmax(1) == place).astype(float).tolist()


@dataclass(frozen=True)
class Comparison:
    """Scores of all methods on all held-out rows."""

    task: Task
    n_rows: int
    scores: dict[str, dict[str, float]]
    sentence: str

    def to_document(self) -> dict[str, Any]:
        """The comparison as a model file and JSON hold it."""
        return {"rows": self.n_rows, "scores": self.scores, "sentence": self.sentence}


def join_folds(task: Task, folds: Sequence[FoldScores]) -> Comparison:
    """The scores of several folds as those of one."""
    joined = {
        part: {name: np.concatenate([getattr(fold, part)[name] for fold in folds]) for name in getattr(folds[0], part)}
        for part in ("losses", "log_probs", "hits")
    }
    losses, log_probs, hits = joined["losses"], joined["log_probs"], joined["hits"]
    scores = {}
    for name, loss in losses.items():
        row = {"log_likelihood": float(log_probs[name].mean())}
        if task == "regression":
            row = {"rmse": float(np.sqrt(loss.mean())), **row}
            if name in hits:
                row["coverage"] = float(hits[name].mean())
        else:
            row = {"accuracy": float(hits[name].mean()), **row}
        scores[name] = row
    return Comparison(task, len(losses[OWN]), scores, _sentence(task, losses))


def _sentence(task: Task, losses: dict[str, Array]) -> str:
    """A verdict on vmg against the others; a difference counts from two standard errors on."""
    what = "error" if task == "regression" else "log loss"
    n = len(losses[OWN])

    def size(name: str) -> float:
        mean = float(losses[name].mean())
        return float(np.sqrt(mean)) if task == "regression" else mean

    def surely(name: str) -> int:
        """1 where vmg is surely better than another, -1 where it is surely worse."""
        gain = losses[name] - losses[OWN]
        error = float(gain.std(ddof=1) / np.sqrt(n)) if n > 1 else np.inf
        return int(np.sign(gain.mean())) if abs(gain.mean()) > SURE * error else 0

    others = [name for name in losses if name != OWN]
    best = min(others, key=size)
    if surely(BASE_RATE) < 1:
        return f"On these {n:,} rows vmg is not surely better than the base rate: do not rely on it."
    change = 1 - size(OWN) / size(BASE_RATE)
    start = f"vmg's {what} is {change:.0%} below the base rate's"
    if best == BASE_RATE or surely(best) == 1:
        return f"{start}, and no other method here comes near."
    if surely(best) == -1:
        return f"{start}, but {best} is better on these {n:,} rows ({size(best):.4g} against {size(OWN):.4g})."
    return f"{start}; against {best} ({size(best):.4g}, vmg {size(OWN):.4g}) {n:,} rows cannot tell which is better."


def _baselines(*, classes: bool) -> dict[str, Any]:
    """Unfitted scikit-learn estimators by name, with scikit-learn's own settings."""
    if classes:
        return {
            BASE_RATE: DummyClassifier(),
            "linear": make_pipeline(StandardScaler(), LogisticRegression(max_iter=500)),
            "gradient boosting": HistGradientBoostingClassifier(random_state=0),
        }
    return {
        BASE_RATE: DummyRegressor(),
        "linear": make_pipeline(StandardScaler(), RidgeCV(PENALTIES)),
        "gradient boosting": HistGradientBoostingRegressor(random_state=0),
    }


def _cross_predict(estimator: Any, X: Any, y: Any) -> Any:
    """Predictions of each row by an estimator that was fitted to other rows."""
    return cross_val_predict(estimator, X, y, cv=min(FOLDS, len(y)))

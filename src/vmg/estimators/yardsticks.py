"""What any model of a table must be held against: the base rate, a linear model and boosted trees."""

from __future__ import annotations

from typing import Any

from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.model_selection import cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

__all__ = ["BASE_RATE", "cross_predict", "make_yardsticks"]

BASE_RATE = "base rate"
PENALTIES = (0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)
FOLDS = 3


def make_yardsticks(*, classes: bool) -> dict[str, Any]:
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


def cross_predict(estimator: Any, X: Any, y: Any) -> Any:
    """Predictions of each row by an estimator that was fitted to other rows."""
    return cross_val_predict(estimator, X, y, cv=min(FOLDS, len(y)))

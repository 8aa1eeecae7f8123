"""scikit-learn estimators of tables."""

from vmg.estimators.classifier import TableClassifier
from vmg.estimators.regressor import TableRegressor

__all__ = ["ESTIMATORS", "TableClassifier", "TableRegressor"]

ESTIMATORS: dict[str, type[TableClassifier | TableRegressor]] = {
    "TableClassifier": TableClassifier,
    "TableRegressor": TableRegressor,
}
"""Estimators by their name in a model file."""

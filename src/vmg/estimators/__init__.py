"""scikit-learn estimators."""

from vmg.estimators.classifier import VMGClassifier
from vmg.estimators.regressor import VMGRegressor
from vmg.estimators.splits import fit_splits

__all__ = ["VMGClassifier", "VMGRegressor", "fit_splits"]

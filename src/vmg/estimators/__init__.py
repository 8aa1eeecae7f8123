"""scikit-learn estimators."""

from vmg.estimators.classifier import TableClassifier
from vmg.estimators.network import fit_splits
from vmg.estimators.pseudo_data.classifier import VMGClassifier
from vmg.estimators.pseudo_data.regressor import VMGRegressor
from vmg.estimators.regressor import TableRegressor

__all__ = ["TableClassifier", "TableRegressor", "VMGClassifier", "VMGRegressor", "fit_splits"]

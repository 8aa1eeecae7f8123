"""scikit-learn estimators."""

from vmg.estimators.classifier import VMGClassifier
from vmg.estimators.network import fit_splits
from vmg.estimators.pseudo_data.classifier import PseudoDataClassifier
from vmg.estimators.pseudo_data.regressor import PseudoDataRegressor
from vmg.estimators.regressor import VMGRegressor

__all__ = ["PseudoDataClassifier", "PseudoDataRegressor", "VMGClassifier", "VMGRegressor", "fit_splits"]

"""The paper's model as scikit-learn estimators, fitted by its objective: many networks as one batched network."""

from vmg.variational.estimators import VMGClassifier, VMGRegressor, fit_splits

__all__ = ["VMGClassifier", "VMGRegressor", "fit_splits"]

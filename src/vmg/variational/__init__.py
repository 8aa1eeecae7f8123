"""The paper's model as scikit-learn estimators, and fits by the lower bound: many networks as one batched network."""

from vmg.variational.base import fit_splits
from vmg.variational.estimators import VMGClassifier, VMGRegressor

__all__ = ["VMGClassifier", "VMGRegressor", "fit_splits"]

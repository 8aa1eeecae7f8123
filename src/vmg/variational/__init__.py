"""The paper's model as scikit-learn estimators, fitted by its objective: many networks as one batched network."""

from vmg.variational.estimators import VMGClassifier, VMGRegressor

__all__ = ["VMGClassifier", "VMGRegressor"]

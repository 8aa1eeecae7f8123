"""The methods that the paper compares, each as an estimator."""

from vmg.baselines.paper import PaperVMGRegressor

__all__ = ["PaperVMGRegressor"]

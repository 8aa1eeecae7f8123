"""scikit-learn estimators of tables."""

from vmg.estimators.classifier import TableClassifier
from vmg.estimators.frames import FrameClassifier, FrameRegressor
from vmg.estimators.regressor import TableRegressor
from vmg.estimators.table_model import ESTIMATORS, TableModel

__all__ = ["ESTIMATORS", "FrameClassifier", "FrameRegressor", "TableClassifier", "TableModel", "TableRegressor"]

"""scikit-learn estimators of tables, and a model of a whole table around them."""

from vmg.estimators.classifier import TableClassifier
from vmg.estimators.regressor import TableRegressor
from vmg.estimators.table_model import TableModel

__all__ = ["TableClassifier", "TableModel", "TableRegressor"]

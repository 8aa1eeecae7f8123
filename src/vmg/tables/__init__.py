"""Tables as people have them: files, words, dates and holes, turned into numbers for the estimators and back."""

from vmg.tables.encoder import TableEncoder
from vmg.tables.errors import TableError
from vmg.tables.estimators import TableClassifier, TableRegressor
from vmg.tables.files import read_table, write_table
from vmg.tables.model import TableModel

__all__ = ["TableClassifier", "TableEncoder", "TableError", "TableModel", "TableRegressor", "read_table", "write_table"]

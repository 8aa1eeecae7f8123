"""Tables as people have them: files, words, dates and holes, turned into numbers for the estimators and back."""

from vmg.tables.encoder import TableEncoder
from vmg.tables.estimators import FrameClassifier, FrameRegressor
from vmg.tables.files import read_table, write_table
from vmg.tables.model import TableModel
from vmg.tables.wording import TableError

__all__ = ["FrameClassifier", "FrameRegressor", "TableEncoder", "TableError", "TableModel", "read_table", "write_table"]

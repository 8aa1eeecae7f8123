"""Tables as people have them: files, words, dates and holes, turned into numbers for the estimators."""

from vmg.tables.cells import TableError
from vmg.tables.encoder import TableEncoder
from vmg.tables.files import read_table, write_table

__all__ = ["TableEncoder", "TableError", "read_table", "write_table"]

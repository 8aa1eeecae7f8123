"""Tables as people have them: files, words, dates and holes, turned into numbers for the estimators."""

from vmg.tables.encoder import TableEncoder
from vmg.tables.files import read_table, write_table
from vmg.tables.wording import TableError

__all__ = ["TableEncoder", "TableError", "read_table", "write_table"]

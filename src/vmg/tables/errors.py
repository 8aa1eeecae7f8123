"""The one exception for tables that cannot be used as they are."""

__all__ = ["TableError"]


class TableError(ValueError):
    """A table, a column or a choice about them that its owner has to change; the message says which and how."""

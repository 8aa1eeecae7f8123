"""The exception for tables that cannot be used, and the wording of counts and lists in sentences about tables."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["TableError", "count", "listing"]


class TableError(ValueError):
    """A table, a column or a choice about them that its owner has to change; the message says which and how."""


LONGEST = 80  # characters of a name in a sentence
LISTED = 8  # names that a sentence shows before it says "and 5 more"


def listing(names: Iterable[object]) -> str:
    """'a', 'b' and 3 more; long names are cut."""
    quoted = [name if isinstance(name, str) and name.startswith("'") else f"'{name}'" for name in names]
    text = ", ".join(name if len(name) <= LONGEST else f"{name[: LONGEST - 2]}…'" for name in quoted[:LISTED])
    return text if len(quoted) <= LISTED else f"{text} and {len(quoted) - LISTED} more"


def count(n: int, noun: str, plural: str | None = None) -> str:
    """1 row, 2 rows, 1,200 rows."""
    return f"{n:,} {noun if n == 1 else plural or noun + 's'}"

"""A fit that happens whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["whole_or_not_at_all"]


@contextmanager
def whole_or_not_at_all(estimator: Any) -> Iterator[None]:
    """Keep the attributes as they were unless the block ends without an exception, Ctrl-C included.

    Attributes are put back, not what they refer to: a block makes new objects and changes none of the old ones.
    """
    before = dict(estimator.__dict__)
    try:
        yield
    except BaseException:
        estimator.__dict__.clear()
        estimator.__dict__.update(before)
        raise

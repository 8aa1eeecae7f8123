"""All methods of the comparison, by experiment and name."""

from __future__ import annotations

from typing import Any

from vmg_paper.experiments.table1_methods import TABLE_METHODS
from vmg_paper.experiments.table2_methods import DIGIT_METHODS

__all__ = ["METHODS", "listing"]

METHODS: dict[str, dict[str, Any]] = {"table1": TABLE_METHODS, "table2": DIGIT_METHODS}
"""Methods have a ``name`` and a ``summary``; on tables they make estimators, on images networks."""


def listing(experiment: str) -> list[tuple[str, str]]:
    """Name and summary of every method of an experiment."""
    return [(method.name, method.summary) for method in METHODS[experiment].values()]

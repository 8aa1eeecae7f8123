"""Figures of the paper, to print beside ours."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["PAPER_TABLE1", "Figure"]


class Figure(NamedTuple):
    """A mean over splits and its standard error."""

    mean: float
    error: float


PAPER_TABLE1: dict[str, tuple[Figure, Figure]] = {
    "boston": (Figure(2.70, 0.13), Figure(-2.46, 0.09)),
    "concrete": (Figure(4.89, 0.12), Figure(-3.01, 0.03)),
    "energy": (Figure(0.54, 0.02), Figure(-1.06, 0.03)),
    "kin8nm": (Figure(0.08, 0.00), Figure(1.10, 0.01)),
    "naval": (Figure(0.00, 0.00), Figure(2.46, 0.00)),
    "power": (Figure(4.04, 0.04), Figure(-2.82, 0.01)),
    "protein": (Figure(4.13, 0.02), Figure(-2.84, 0.00)),
    "wine": (Figure(0.63, 0.01), Figure(-0.95, 0.01)),
    "yacht": (Figure(0.71, 0.05), Figure(-1.30, 0.02)),
}
"""Test RMSE and log-likelihood of VMG [LW16, Table 1]; Year, one split without errors, is left out."""

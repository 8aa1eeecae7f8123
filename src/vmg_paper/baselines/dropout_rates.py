"""Dropout rates, given or chosen on held-out training rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vmg_paper.baselines.held_out_choice import HeldOutChoice

__all__ = ["RATES", "ChosenDropoutRate"]

RATES = (0.005, 0.01, 0.05, 0.1, 0.2)
"""Rates that are tried: the grid of Gal & Ghahramani (2016) for the paper's tables, and one larger."""


class ChosenDropoutRate(HeldOutChoice):
    """A dropout rate that is given, or for each training set the best of a grid.

    Parameters
    ----------
    rate : float or "auto"
        Probability that an input (or weight) is dropped; "auto" tries :data:`RATES` on held-out training rows.
    """

    rate: float | str

    def __init__(
        self, hidden_layer_sizes: int | Sequence[int] = (50,), *, rate: float | str = "auto", **options: Any
    ) -> None:
        super().__init__(hidden_layer_sizes, **options)
        self.rate = rate

    @property
    def rate_(self) -> float:
        """The rate in use."""
        return float(self.max_noise_)  # one for all members

    def _tried(self) -> Sequence[float]:
        if self.rate == "auto":
            return RATES
        if isinstance(self.rate, str):
            raise ValueError(f"rate must be a number in [0, 1) or 'auto'; got {self.rate!r}")
        return (float(self.rate),)

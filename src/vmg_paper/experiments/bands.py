"""A predictive band along a line, and how far it is from the true one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vmg.prediction import Prediction

__all__ = ["Band", "Distance", "ToyResult", "distance"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Band:
    """One method's predictive distribution along a line, in the target's units: all [N]."""

    name: str
    x: Array
    mean: Array
    std: Array
    epistemic_std: Array
    truth: str = ""
    """The name of the band that this one approximates; empty for a truth itself."""
    note: str = ""
    rhat: float | None = None
    """How well the chains of a truth agree at the data."""

    @classmethod
    def of(cls, name: str, x: Array, prediction: Prediction, **fields: Any) -> Band:
        """The band of a prediction at x."""
        return cls(name, x, prediction.mean, prediction.std, prediction.epistemic_std, **fields)


@dataclass(frozen=True)
class Distance:
    """Mean absolute differences to a true band, where there are data and where there are none."""

    name: str
    truth: str
    mean_inside: float
    mean_outside: float
    log_std_inside: float
    log_std_outside: float


def distance(band: Band, truth: Band, inside: NDArray[np.bool_]) -> Distance:
    """How far ``band`` is from ``truth``: means in units of the true band's width, widths as |log ratio|.

    So 1 is a mean that is one true standard deviation off, and 0.7 a width that is twice or half the true one.
    """
    mean = np.abs(band.mean - truth.mean) / truth.std
    log_std = np.abs(np.log(band.std / truth.std))
    parts = (part[where] for part in (mean, log_std) for where in (inside, ~inside))
    return Distance(band.name, truth.name, *(float(part.mean()) for part in parts))


@dataclass(frozen=True)
class ToyResult:
    """All that a figure shows."""

    x: Array  # data, [N]
    y: Array
    target: Callable[[Array], Array]  # the function behind the data
    bands: list[Band]
    truths: list[Band]
    ranges: Sequence[tuple[float, float]]  # where there are data

    def distances(self) -> list[Distance]:
        """Distance of every band to its truth."""
        truths = {band.name: band for band in self.truths}
        return [distance(band, truths[band.truth], self.inside(band.x)) for band in self.bands]

    def inside(self, x: Array) -> NDArray[np.bool_]:
        """Whether x is where the data are."""
        return np.logical_or.reduce([(low <= x) & (x <= high) for low, high in self.ranges])

    def document(self) -> dict[str, Any]:
        """The numbers of the figure, for a machine."""
        return {
            "x": self.x.tolist(),
            "y": self.y.tolist(),
            "distances": [vars(one) for one in self.distances()],
            "bands": [
                {
                    "name": band.name,
                    "truth": band.truth,
                    "note": band.note,
                    **{key: getattr(band, key).tolist() for key in ("x", "mean", "std", "epistemic_std")},
                }
                for band in (*self.bands, *self.truths)
            ],
        }

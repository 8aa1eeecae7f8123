"""The diabetes table that comes with scikit-learn (Efron et al. 2004): 442 patients, ten measurements."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from sklearn.datasets import load_diabetes as _load

__all__ = ["Diabetes", "load_diabetes"]


class Diabetes(NamedTuple):
    """Measurements in their own units, and the progression of the disease one year later."""

    X: npt.NDArray[np.float64]  # [442, 10]
    y: npt.NDArray[np.float64]  # [442]
    feature_names: list[str]


def load_diabetes() -> Diabetes:
    """Read the bundled table; nothing is downloaded."""
    bunch = _load(scaled=False)
    return Diabetes(bunch.data, bunch.target, list(bunch.feature_names))

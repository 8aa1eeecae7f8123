"""Ensembles of members that are conditioned on all rows: their common parts.

A fit of any kind gives a :class:`Fitted`: the ensemble, which predicts new rows, and what its members said of rows of
the fit before they had seen them, by which fits of different kinds can be compared or weighed. Beside the members of an
ensemble there may be an :class:`Expert` of another kind.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vmg.fit.design import FitRows, InputRange
from vmg.fit.trainer import Kind
from vmg.math.distributions import Array
from vmg.model_file import require_shapes
from vmg.training import History

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Ensemble", "Expert", "Fitted", "Function", "HeldOutSample", "Mixture"]


class HeldOutSample(NamedTuple):
    """Positions [n] of rows of a fit, and predictions of them by the members that had not seen them."""

    rows: NDArray[np.int64]
    predictions: Any  # a NumberPrediction

    def at(self, rows: NDArray[np.int64]) -> Any:
        """Predictions of some of the rows, by their positions among those of the fit."""
        order = np.argsort(self.rows)
        return self.predictions.take(order[np.searchsorted(self.rows, rows, sorter=order)])


class Fitted(NamedTuple):
    """A fitted ensemble, how training went, and its held-out sample; None where too few rows could be held out."""

    ensemble: Any
    history: History
    held_out: HeldOutSample | None


class Function(NamedTuple):
    """Centre and variance of a function at rows, [N] each, or of several functions, [N, C]."""

    loc: Array
    variance: Array


class Mixture(NamedTuple):
    """Centre and stated variance of functions, [N, C], and the limits of that variance, however it is inflated."""

    loc: Array
    variance: Array
    least: Array | float = 0.0
    most: Array | float = np.inf


class Expert(ABC):
    """A function of squashed inputs for one output, learned from all rows.

    Without more it knows no noise and no ignorance, and cannot learn from later rows alone.
    """

    name: ClassVar[str]
    most_inputs: ClassVar[float] = np.inf  # with which it is fitted

    @classmethod
    @abstractmethod
    def fit(cls, rows: FitRows, index: NDArray[np.int64]) -> tuple[Self, list[Function]]:
        """The expert of all rows, and what one without the rows of each group predicts for the rows ``index``."""

    @property
    def noise(self) -> float:
        """Variance of the noise by the expert's own estimate; 0 where it has none."""
        return 0.0

    @abstractmethod
    def predict(self, x: Array) -> Function:
        """Centre and variance at rows x [N, D]."""

    def factor(self, x: Array) -> Array:
        """F [K, N] with FᵀF the covariance between rows of the function."""
        return np.zeros((0, len(x)))

    def updated(self, x: Array, y: Array, weight: Array | None) -> Expert:
        """The expert after more rows, without those it has seen before."""
        return self

    @abstractmethod
    def check(self, n_inputs: int) -> None:
        """Raise a ValueError unless the numbers are those of an expert of so many inputs."""


@dataclass(frozen=True)
class Ensemble(ABC, Generic[Kind]):
    """Members conditioned on all rows."""

    members: Kind
    input_range: InputRange

    def __post_init__(self) -> None:
        shape = (self.members.features.in_features,)
        require_shapes({"low": shape, "high": shape}, vars(self.input_range))

    def relevance(self) -> Array:
        """How strongly each input can move the first layer, [D]."""
        return self.members.features.relevance().double().numpy()

    @property
    def weights(self) -> dict[str, float]:
        """The weight of each expert by its name."""
        return {"networks": 1.0}

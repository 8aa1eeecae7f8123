"""What every kind of column can do: become numbers, say which rows it knows nothing of, and flag them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

__all__ = ["Column", "Features", "Mask", "Reading"]

Features = dict[str, NDArray[np.float64]]
Mask = NDArray[np.bool_]


class Reading(NamedTuple):
    """How cells of a table are read, as far as it is not the column's own matter."""

    decimal_comma: bool = False
    day_first: bool | None = None
    date_format: str | None = None
    forced: bool = False  # the user says that the column is of this kind


@dataclass(frozen=True)
class Column(ABC):
    """One column of the table; ``n_missing`` counts the training rows without a value."""

    name: str
    n_missing: int

    kind: ClassVar[str]
    plural: ClassVar[str]

    @classmethod
    @abstractmethod
    def fit(cls, column: pd.Series, reading: Reading) -> Column | None:
        """The column as this kind; None if its cells are not of this kind."""

    @abstractmethod
    def transform(self, column: pd.Series) -> Features:
        """Named features of each row, none missing."""

    @abstractmethod
    def marks(self, column: pd.Series) -> dict[str, Mask]:
        """Rows whose cell is ``missing`` (or cannot be read), ``unseen`` in training, or ``outside`` its range."""

    @abstractmethod
    def feature_scales(self) -> list[float]:
        """The distance in each feature that counts as one, in the order of :meth:`transform`; inf leaves it out."""

    def unseen(self, column: pd.Series) -> list[str]:
        """Values that training rows did not have and that therefore say nothing."""
        return []

    def clipped(self, column: pd.Series) -> pd.Series:
        """The column with values outside the training range moved to its ends."""
        return column

    def notes(self) -> list[str]:
        """What is worth saying about how the column is read."""
        return []

    def to_document(self) -> dict[str, Any]:
        """The fitted column for a model file."""
        return {"kind": self.kind, **asdict(self)}

    def _fill(self, values: NDArray[np.float64], filling: float) -> Features:
        """Missing values filled, and marked by a second feature where training rows had some."""
        return {self.name: np.where(np.isnan(values), filling, values)} | self._missing_mark(values)

    def _missing_mark(self, values: ArrayLike) -> Features:
        return {f"{self.name}: missing": np.asarray(pd.isna(values), dtype=np.float64)} if self.n_missing else {}

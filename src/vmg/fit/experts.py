"""Experts beside the networks: each is a function of the inputs with a centre and a variance at every row."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from torch import Tensor

from vmg.math.distributions import Array
from vmg.model_file import Document, Tensors

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Expert", "Function"]


class Function(NamedTuple):
    """Centre and variance of a function at rows, [N] each."""

    loc: Array
    variance: Array


class Expert(ABC):
    """A function of squashed inputs for one output, learned from all rows."""

    name: ClassVar[str]

    @property
    @abstractmethod
    def noise(self) -> float:
        """Variance of the noise by the expert's own estimate; 0 where it has none."""

    @abstractmethod
    def predict(self, x: Array) -> Function:
        """Centre and variance at rows x [N, D]."""

    @abstractmethod
    def factor(self, x: Array) -> Array:
        """F [K, N] with FᵀF the covariance between rows of the function."""

    @abstractmethod
    def updated(self, x: Array, y: Array, weight: Array | None) -> Expert:
        """The expert after more rows, without those it has seen before."""

    @abstractmethod
    def to_document(self) -> tuple[Tensors, Document]:
        """Tensors and a document for a model file."""

    @classmethod
    @abstractmethod
    def from_document(cls, tensors: Mapping[str, Tensor], document: Document, n_inputs: int) -> Self:
        """The expert that :meth:`to_document` described; a ValueError where it is none of ``n_inputs`` inputs."""

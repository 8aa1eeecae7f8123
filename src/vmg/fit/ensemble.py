"""Ensembles of members that are conditioned on all rows: their common parts, and how a model file keeps them.

A fit of any kind gives a :class:`Fitted`: the ensemble, which predicts new rows, and what its members said of rows of
the fit before they had seen them, by which fits of different kinds can be compared or weighed. Beside the members of an
ensemble there may be an :class:`Expert` of another kind.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vmg.fit.design import InputRange
from vmg.fit.trainer import Members
from vmg.math.distributions import Array
from vmg.model_file import Document, Tensors, require_shapes
from vmg.nn.anchored import AnchoredFeatures
from vmg.training import History

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "Ensemble",
    "Expert",
    "Fitted",
    "Function",
    "HeldOutSample",
    "Mixture",
    "StoredMembers",
    "prefixed",
    "read_arrays",
    "stripped",
    "written_arrays",
]

Kind = TypeVar("Kind", bound=Members)
AnyEnsemble = TypeVar("AnyEnsemble")


class HeldOutSample(NamedTuple):
    """Positions [n] of rows of a fit, and predictions of them by the members that had not seen them."""

    rows: NDArray[np.int64]
    predictions: Any  # a NumberPrediction

    def places(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Positions in the sample of some of its rows."""
        order = np.argsort(self.rows)
        return order[np.searchsorted(self.rows, rows, sorter=order)]


@dataclass(frozen=True)
class Fitted(Generic[AnyEnsemble]):
    """A fitted ensemble, how training went, and its held-out sample; None where too few rows could be held out."""

    ensemble: AnyEnsemble
    history: History
    held_out: HeldOutSample | None


class Function(NamedTuple):
    """Centre and variance of a function at rows, [N] each, or of several functions, [N, C]."""

    loc: Array
    variance: Array


class Mixture(NamedTuple):
    """Centre and stated variance of functions, [N, C], and what their variance is at least, however it is inflated."""

    loc: Array
    variance: Array
    least: Array | float = 0.0


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


@dataclass(frozen=True)
class Ensemble(ABC, Generic[Kind]):
    """Members conditioned on all rows."""

    members: Kind
    input_range: InputRange

    def relevance(self) -> Array:
        """How strongly each input can move the first layer, [D]."""
        return self.members.features.relevance().double().numpy()

    @property
    def weights(self) -> dict[str, float]:
        """The weight of each expert by its name."""
        return {"networks": 1.0}

    def to_document(self) -> tuple[Tensors, Document]:
        """Tensors and a document for a model file."""
        features, (tensors, document) = self.members.features, self._own_document()
        names = ("in_features", "hidden", "activations", "n_members", "n_directions")
        sizes = {name: list(value) if isinstance(value := getattr(features, name), tuple) else value for name in names}
        members = prefixed("members.", self.members.state_dict())
        ends = written_arrays({"low": self.input_range.low, "high": self.input_range.high})
        return {**members, **ends, **tensors}, {"features": sizes, **document}

    @classmethod
    def from_document(cls, tensors: Mapping[str, Tensor], document: Document) -> Self:
        """The ensemble that :meth:`to_document` described; a ValueError where the tensors have other sizes."""
        stored = StoredMembers(document["features"], tensors)
        shape = (stored.sizes["in_features"],)
        ends = read_arrays({"low": shape, "high": shape}, tensors)
        return cls._from_own_document(stored, InputRange(*ends), document)

    @abstractmethod
    def _own_document(self) -> tuple[Tensors, Document]:
        """Tensors and a document of everything but features and the range of inputs."""

    @classmethod
    @abstractmethod
    def _from_own_document(cls, stored: StoredMembers, inputs: InputRange, document: Document) -> Self: ...


# -- files ------------------------------------------------------------------------------------------------------------


def written_arrays(arrays: Mapping[str, NDArray[Any]]) -> Tensors:
    """Tensors with memory of their own of named arrays."""
    return {name: torch.from_numpy(np.array(array, order="C")) for name, array in arrays.items()}


def read_arrays(shapes: Mapping[str, tuple[int, ...]], tensors: Mapping[str, Tensor]) -> list[Array]:
    """Arrays of tensors with these names, in double precision; a ValueError where they have other shapes."""
    require_shapes(dict(shapes), tensors)
    return [tensors[name].double().numpy().copy() for name in shapes]


def prefixed(start: str, tensors: Mapping[str, Tensor]) -> Tensors:
    """Tensors under names with this start."""
    return {start + name: tensor for name, tensor in tensors.items()}


def stripped(start: str, tensors: Mapping[str, Tensor]) -> Tensors:
    """Those tensors whose names have this start, under names without it."""
    return {name.removeprefix(start): tensor for name, tensor in tensors.items() if name.startswith(start)}


class StoredMembers:
    """Members in a model file, whose sizes take no memory until its tensors are found to have them too."""

    def __init__(self, sizes: Document, tensors: Mapping[str, Tensor]) -> None:
        self.sizes, self.tensors = sizes, tensors

    def members(self, kind: Callable[..., Kind], **options: Any) -> Kind:
        """Members with the numbers of the file; a RuntimeError where these have other shapes than described."""
        names = ("in_features", "hidden", "activations", "n_members", "n_directions")
        sizes = {part: self.sizes[part] for part in names if part in self.sizes}
        with torch.device("meta"):
            members = kind(**sizes, **options).double()
        own = stripped("members.", self.tensors)
        members.load_state_dict({key: one.to(torch.float64, copy=True) for key, one in own.items()}, assign=True)
        return members.eval()

    def posterior(self, features: AnchoredFeatures, *n_functions: int) -> tuple[Tensor, Tensor]:
        """Mean and root of the precision of the output layers' weights."""
        n_members, n_features = features.n_members, features.n_features
        shapes = {"mean": (n_members, n_features, *n_functions), "root": (n_members, n_features, n_features)}
        require_shapes(shapes, self.tensors)
        return self.tensors["mean"].double().clone(), self.tensors["root"].double().clone()

    @staticmethod
    def factors(document: Document) -> tuple[float, float]:
        """Factors of the function and of its variance."""
        sharpness, inflation = float(document["sharpness"]), float(document["inflation"])
        if not (0 < sharpness < np.inf and 0 <= inflation < np.inf):
            raise ValueError(f"a function must have positive factors; got {sharpness} and {inflation}")
        return sharpness, inflation

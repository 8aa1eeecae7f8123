"""Methods of table 2 by name: the network that each one is on images, and how all of them are trained."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

from vmg.nn import MLP
from vmg.nn.bayes_by_backprop import BayesByBackpropLinear, ScaleMixture
from vmg.nn.contract import BayesianLinear
from vmg.nn.deterministic import DeterministicLinear, PointLinear
from vmg.nn.dropconnect import DropConnectLinear
from vmg.nn.dropout import DropoutLinear
from vmg.nn.variational_dropout import VariationalDropoutLinear

__all__ = ["BOUND", "DIGIT_METHODS", "MAX_POINTS", "DigitMethod", "Recipe", "n_weights", "parse_size"]

N_PIXELS, N_CLASSES = 784, 10
MAX_POINTS = 150  # pseudo-points of a layer, at most [LW16, §4.2]
BOUND = 0.25  # on √α [LW16, §4.2]
VMG_OPTIONS: dict[str, Any] = {"pseudo_noise": "factored"}
"""√α_ij is a factor per point times one per dimension, as in the authors' code."""
VMG_TRAINING: dict[str, Any] = {"learning_rate": 3e-4, "averaging": 0.9999}
"""A third of the paper's rate, and an average over twenty epochs: chosen on validation images, docs/table2.md."""

PAPER_SIZES = ("2x400", "3x150", "3x250", "3x500", "3x750")


def parse_size(size: str) -> tuple[int, ...]:
    """Units of each hidden layer: "3x150" is three layers of 150."""
    found = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", size)
    if found is None:
        raise ValueError(f"size must be layers x units, such as 3x150; got {size!r}")
    layers, units = map(int, found.groups())
    return (units,) * layers


def n_weights(size: str) -> int:
    """Weights and biases of a plain network of this size."""
    sizes = [N_PIXELS, *parse_size(size), N_CLASSES]
    return sum((n_in + 1) * n_out for n_in, n_out in pairwise(sizes))


@dataclass(frozen=True)
class Recipe:
    """How every network is trained: Adam at a constant rate, parameters averaged over steps [LW16, §4]."""

    epochs: int = 80
    batch_size: int = 100
    learning_rate: float = 1e-3
    averaging: float = 0.999

    def config(self) -> dict[str, Any]:
        """For the record."""
        return asdict(self)


@dataclass(frozen=True)
class DigitMethod:
    """A method of the comparison."""

    name: str
    summary: str
    make: Callable[[Sequence[int], int, float], MLP]
    """The untrained network for the sizes of hidden layers, a number of pseudo-points and the bound on their noise."""
    options: dict[str, Any] = field(default_factory=dict)
    """What the layers were told, for the record."""
    sizes: tuple[str, ...] = PAPER_SIZES
    """Where it runs unless told otherwise."""
    has_points: bool = False
    is_random: bool = True
    """Whether a trained network has a posterior, or noise, to draw from."""
    n_members: int = 1
    """More are networks of ``member``, of this seed and the next ones."""
    member: str | None = None
    learning_rate: float = 1e-3
    """Of Adam. Weights of all layers are √R times a plain network's, so a step of 1e-2 is there one of some 5e-4."""
    averaging: float = 0.999
    """Of the parameters over steps; 0.999 is two epochs."""


def _matrix_gaussian(hidden: Sequence[int], points: int, bound: float) -> MLP:
    return MLP(N_PIXELS, hidden, N_CLASSES, n_pseudo=points, max_noise=bound, **VMG_OPTIONS)


def _zero_mean(hidden: Sequence[int], points: int, bound: float) -> MLP:
    return MLP(N_PIXELS, hidden, N_CLASSES, n_pseudo=points, max_noise=bound, zero_mean=True, **VMG_OPTIONS)


def _of_layers(make_layer: Callable[..., BayesianLinear]) -> Callable[[Sequence[int], int, float], MLP]:
    """Networks of another kind of layer, made from (inputs, outputs, first, last)."""

    def make(hidden: Sequence[int], points: int, bound: float) -> MLP:
        def layer(position: int, n_in: int, n_out: int) -> BayesianLinear:
            return make_layer(n_in, n_out, first=position == 0, last=position == len(hidden))

        return MLP(N_PIXELS, hidden, N_CLASSES, make_layer=layer)

    return make


def _deterministic(n_in: int, n_out: int, **place: bool) -> DeterministicLinear:
    return DeterministicLinear(n_in, n_out)


INPUT_RATE, HIDDEN_RATE = 0.2, 0.5  # Srivastava et al. 2014, appendix B.1


def _dropout(n_in: int, n_out: int, *, first: bool, last: bool) -> DropoutLinear:
    return DropoutLinear(n_in, n_out, rate=INPUT_RATE if first else HIDDEN_RATE)


def _dropconnect(n_in: int, n_out: int, *, first: bool, last: bool) -> PointLinear:
    """All layers but the last; Gaussians for the masks, as a mask for each row is too much for wide layers."""
    if last:
        return DeterministicLinear(n_in, n_out)
    return DropConnectLinear(n_in, n_out, rate=HIDDEN_RATE, matched=True)


LOG_WIDE, LOG_NARROW = -1.0, -7.0  # the middle of the grid of Blundell et al. 2015, §5.1
INITIAL_SCALE = 0.1


def _bayes_by_backprop(n_in: int, n_out: int, **place: bool) -> BayesByBackpropLinear:
    """The source's prior is of plain weights; ours are √R times as large, as inputs are divided by √R."""
    unit = math.sqrt(n_in + 1)
    prior = ScaleMixture(0.5, unit * math.exp(LOG_WIDE), unit * math.exp(LOG_NARROW))
    return BayesByBackpropLinear(n_in, n_out, prior=prior, initial_scale=INITIAL_SCALE)


def _variational_dropout(n_in: int, n_out: int, **place: bool) -> VariationalDropoutLinear:
    return VariationalDropoutLinear(n_in, n_out)


DIGIT_METHODS = {
    method.name: method
    for method in (
        DigitMethod(
            "vmg",
            "matrix Gaussians with pseudo-data",
            _matrix_gaussian,
            VMG_OPTIONS,
            has_points=True,
            **VMG_TRAINING,
        ),
        DigitMethod(
            "vmg-zero-mean",
            "pseudo-data alone carry the mean",
            _zero_mean,
            {**VMG_OPTIONS, "zero_mean": True},
            has_points=True,
            **VMG_TRAINING,
        ),
        DigitMethod(
            "vmg-ensemble",
            "five of them, of consecutive seeds",
            _matrix_gaussian,
            VMG_OPTIONS,
            ("3x150",),
            has_points=True,
            n_members=5,
            member="vmg",
            **VMG_TRAINING,
        ),
        DigitMethod(
            "max-likelihood",
            "a plain network",
            _of_layers(_deterministic),
            sizes=("3x150", "2x800"),
            is_random=False,
            learning_rate=1e-2,
        ),
        DigitMethod(
            "dropout",
            "inputs and hidden units dropped",
            _of_layers(_dropout),
            {"input_rate": INPUT_RATE, "rate": HIDDEN_RATE},
            ("3x150", "2x800"),
            learning_rate=1e-2,
        ),
        DigitMethod(
            "dropconnect",
            "weights dropped, by matched Gaussians",
            _of_layers(_dropconnect),
            {"rate": HIDDEN_RATE, "matched": True},
            ("3x150", "2x800"),
            learning_rate=3e-2,
        ),
        DigitMethod(
            "bayes-by-backprop",
            "factorised Gaussian, scale mixture prior",
            _of_layers(_bayes_by_backprop),
            {"share": 0.5, "log_wide": LOG_WIDE, "log_narrow": LOG_NARROW, "initial_scale": INITIAL_SCALE},
            ("3x150", "2x400", "2x800", "2x1200"),
            learning_rate=1e-2,
        ),
        DigitMethod(
            "variational-dropout",
            "Gaussian dropout, its rate learned, the whole KL",
            _of_layers(_variational_dropout),
            sizes=PAPER_SIZES[1:],
            learning_rate=1e-2,
        ),
    )
}
"""All trained alike but for rates and averages. 3x150 is among every method's sizes: there all can be compared."""

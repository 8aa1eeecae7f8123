"""Methods of table 2 by name: the network that each one is on images, and how all of them are trained."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

from vmg.nn import MLP
from vmg.nn.bayesian import BayesianLinear
from vmg.priors import IsotropicPrior
from vmg.training import Schedule, constant, cosine
from vmg_paper.layers.factorised import BayesByBackpropLinear, MeanFieldLinear, ScaleMixture
from vmg_paper.layers.point_weights import (
    DeterministicLinear,
    DropConnectLinear,
    DropoutLinear,
    PointLinear,
    VariationalDropoutLinear,
)

__all__ = [
    "DIGIT_METHODS",
    "MAX_NOISE",
    "MAX_POINTS",
    "N_CLASSES",
    "SCHEDULES",
    "DigitMethod",
    "Recipe",
    "n_weights",
    "parse_size",
]

N_PIXELS, N_CLASSES = 784, 10
MAX_POINTS = 150  # pseudo-points of a layer, at most [LW16, §4.2]
MAX_NOISE = 0.25  # limit on √α [LW16, §4.2]
SCHEDULES: dict[str, Schedule] = {"constant": constant, "cosine": cosine}
PAPER_SIZES = ("2x400", "3x150", "3x250", "3x500", "3x750")


def parse_size(size: str) -> tuple[int, ...]:
    """Units of each hidden layer: "3x150" is three layers of 150."""
    match = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", size)
    if match is None:
        raise ValueError(f"size must be layers x units, such as 3x150; got {size!r}")
    layers, units = map(int, match.groups())
    return (units,) * layers


def n_weights(size: str) -> int:
    """Weights and biases of a plain network of this size."""
    sizes = [N_PIXELS, *parse_size(size), N_CLASSES]
    return sum((n_in + 1) * n_out for n_in, n_out in pairwise(sizes))


@dataclass(frozen=True)
class Recipe:
    """How networks are trained: Adam, parameters averaged over steps; in the paper at a constant rate [LW16, §4]."""

    epochs: int = 80
    batch_size: int = 100
    learning_rate: float = 1e-3
    averaging: float = 0.999
    schedule: str = "constant"


@dataclass(frozen=True)
class DigitMethod:
    """A method of the comparison."""

    name: str
    summary: str
    build: Callable[..., MLP]
    """The untrained network for the sizes of hidden layers, a number of pseudo-points, the limit on their noise and
    the options."""
    options: dict[str, Any] = field(default_factory=dict)
    """Settings of the layers."""
    sizes: tuple[str, ...] = PAPER_SIZES
    """Sizes at which it runs unless told otherwise."""
    has_points: bool = False
    is_random: bool = True
    """Whether a trained network has a posterior, or noise, to draw from."""
    n_members: int = 1
    """More are networks of ``member``, of this seed and the next ones."""
    member: str | None = None
    learning_rate: float = 1e-3
    """Learning rate of Adam. Weights are √R times a plain network's, so a step of 1e-2 is there one of some 5e-4."""
    averaging: float = 0.999
    """Decay of the parameters' average over steps; 0.999 is two epochs."""
    schedule: str = "constant"
    """Schedule of the learning rate, one of ``SCHEDULES``."""

    def make(self, hidden: Sequence[int], points: int, max_noise: float) -> MLP:
        """The untrained network; where a method has no pseudo-points, ``points`` and ``max_noise`` say nothing."""
        return self.build(hidden, points, max_noise, **self.options)

    def recipe(self, epochs: int, learning_rate: float | None = None) -> Recipe:
        """How its networks are trained; at its own rate unless another is given."""
        rate = learning_rate or self.learning_rate
        return Recipe(epochs, learning_rate=rate, averaging=self.averaging, schedule=self.schedule)

    def config(self, recipe: Recipe) -> dict[str, Any]:
        """The settings as a results file holds them."""
        return {**asdict(recipe), **self.options, "n_members": self.n_members}


def _matrix_gaussian(
    hidden: Sequence[int], points: int, max_noise: float, *, prior_scale: float, **options: Any
) -> MLP:
    prior = IsotropicPrior(prior_scale)
    return MLP(N_PIXELS, hidden, N_CLASSES, n_pseudo=points, max_noise=max_noise, prior=prior, **options)


def _of_layers(make_layer: Callable[..., BayesianLinear]) -> Callable[..., MLP]:
    """Networks of another kind of layer, made from (inputs, outputs, first, last, options)."""

    def build(hidden: Sequence[int], points: int, max_noise: float, **options: Any) -> MLP:
        def layer(position: int, n_in: int, n_out: int) -> BayesianLinear:
            return make_layer(n_in, n_out, first=position == 0, last=position == len(hidden), **options)

        return MLP(N_PIXELS, hidden, N_CLASSES, make_layer=layer)

    return build


def _dropout(n_in: int, n_out: int, *, first: bool, last: bool, input_rate: float, rate: float) -> DropoutLinear:
    return DropoutLinear(n_in, n_out, rate=input_rate if first else rate)


def _dropconnect(n_in: int, n_out: int, *, first: bool, last: bool, rate: float, precision: float) -> PointLinear:
    """All layers but the last."""
    if last:
        return DeterministicLinear(n_in, n_out, precision=precision)
    return DropConnectLinear(n_in, n_out, rate=rate, precision=precision)


def _bayes_by_backprop(
    n_in: int,
    n_out: int,
    *,
    share: float,
    log_wide: float,
    log_narrow: float,
    plain_scale: float,
    scale_rate: float,
    **place: bool,
) -> BayesByBackpropLinear:
    """The source's prior is of plain weights; ours are √R times as large, as inputs are divided by √R."""
    unit = math.sqrt(n_in + 1)
    prior = ScaleMixture(share, unit * math.exp(log_wide), unit * math.exp(log_narrow))
    return BayesByBackpropLinear(n_in, n_out, prior=prior, initial_scale=unit * plain_scale, scale_rate=scale_rate)


def _vmg(
    name: str,
    summary: str,
    *,
    sizes: tuple[str, ...] = PAPER_SIZES,
    members: str | None = None,
    **differences: Any,
) -> DigitMethod:
    """Matrix Gaussians with pseudo-data, or five networks of ``members``; options are as they differ from ``vmg``.

    √α_ij is a factor per point times one per dimension, as in the authors' code; the prior is the paper's,
    MN(0, s² I, I) with s = 1. A third of the paper's rate and an average over twenty epochs were chosen on validation
    images, docs/table2.md.
    """
    return DigitMethod(
        name,
        summary,
        _matrix_gaussian,
        {"prior_scale": 1.0, "pseudo_noise": "factored", **differences},
        sizes,
        has_points=True,
        n_members=1 if members is None else 5,
        member=members,
        learning_rate=3e-4,
        averaging=0.9999,
    )


DIGIT_METHODS = {
    method.name: method
    for method in (
        _vmg("vmg", "matrix Gaussians with pseudo-data"),
        _vmg("vmg-zero-mean", "pseudo-data alone carry the mean", zero_mean=True),
        _vmg("vmg-ensemble", "five of vmg", sizes=("3x150",), members="vmg"),
        DigitMethod(
            "max-likelihood",
            "a plain network",
            _of_layers(lambda n_in, n_out, **place: DeterministicLinear(n_in, n_out)),
            sizes=("3x150", "2x800"),
            is_random=False,
            learning_rate=1e-2,
        ),
        DigitMethod(
            "dropout",
            "inputs and hidden units dropped",
            _of_layers(_dropout),
            {"input_rate": 0.2, "rate": 0.5},  # Srivastava et al. 2014, appendix B.1
            ("3x150", "2x800"),
            learning_rate=1e-2,
        ),
        DigitMethod(
            "dropconnect",
            "weights dropped, by matched Gaussians",
            _of_layers(_dropconnect),
            {"rate": 0.5, "precision": 10.0},  # weight decay by validation images, docs/table2.md
            ("3x150", "2x800"),
            learning_rate=3e-2,
            schedule="cosine",
        ),
        DigitMethod(
            "bayes-by-backprop",
            "factorised Gaussian, scale mixture prior",
            _of_layers(_bayes_by_backprop),
            # the middle of the grid of Blundell et al. 2015, §5.1; scales by validation images, docs/table2.md
            {"share": 0.5, "log_wide": -1.0, "log_narrow": -7.0, "plain_scale": 0.03, "scale_rate": 1e-3},
            ("3x150", "2x400", "2x800", "2x1200"),
            learning_rate=3e-2,
            schedule="cosine",
        ),
        DigitMethod(
            "mean-field",
            "factorised Gaussian, weights N(0, 1)",
            _of_layers(lambda n_in, n_out, **place: MeanFieldLinear(n_in, n_out)),
            sizes=("3x150",),
        ),
        DigitMethod(
            "variational-dropout",
            "Gaussian dropout, its rate learned, the whole KL",
            _of_layers(lambda n_in, n_out, **place: VariationalDropoutLinear(n_in, n_out)),
            sizes=PAPER_SIZES[1:],
            learning_rate=1e-2,
        ),
    )
}
"""Trained alike but for rates and averages. All have 3x150 among their sizes, to be compared there."""

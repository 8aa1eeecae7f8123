"""The plan of a fit: units of the rows, size of the networks, threads, and the rows that each member never sees.

Random folds say how well members predict rows like the others. Regions say how well they predict where there are no
rows: a member that has not seen a region must be unsure of it, and by how much is then measured, not assumed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from threading import Lock, current_thread, main_thread
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse import csgraph
from threadpoolctl import ThreadpoolController

from vmg.likelihoods.families import LIKELIHOODS, LogNormal
from vmg.math.distributions import Array
from vmg.training import Callback

__all__ = [
    "Design",
    "FitRows",
    "FitSettings",
    "InputRange",
    "Size",
    "Standardiser",
    "TrainingPlan",
    "choose_size",
    "count_directions",
    "ordinary_rows",
    "regions",
    "squash",
    "threads_for",
    "use_threads",
]

Rows = NDArray[np.bool_]

# -- units ------------------------------------------------------------------------------------------------------------

FARTHEST = 1e6  # standard deviations outside the range that a row counts as
SQUASH_LIMIT = 3.0  # standard deviations, beyond which an input counts by its logarithm
REACH = 30.0  # times the distance from the median that nine of ten targets keep
LOG_REACH = 6.0  # the same, of the logarithm of amounts


@dataclass(frozen=True)
class Standardiser:
    """(values − mean)/scale of each column, fitted on training rows; constant columns get scale 1."""

    mean: Array
    scale: Array

    @classmethod
    def fit(cls, values: Array, weight: Array | None = None) -> Standardiser:
        """Weighted mean and standard deviation of each column of values [N, D]."""
        mean = np.average(values, axis=0, weights=weight)
        centred = values - mean
        largest = np.abs(centred).max(0)
        unit = np.where(largest > 0, largest, 1.0)  # squares of huge or tiny numbers would leave the range of floats
        scale = unit * np.sqrt(np.average((centred / unit) ** 2, axis=0, weights=weight))
        # a column that varies by rounding alone counts as constant
        constant = scale <= 1e-10 * np.maximum(np.abs(mean), np.finfo(np.float64).tiny)
        return cls(mean, np.where(constant, 1.0, scale))

    def transform(self, values: Array) -> Array:
        """Values in standard units."""
        return (values - self.mean) / self.scale

    def inverse(self, values: Array) -> Array:
        """Standard units back in the original ones."""
        return values * self.scale + self.mean


def squash(x: Array) -> Array:
    """Inputs in standard units, beyond ±3 growing with the logarithm alone.

    One row far outside then moves a network no more than its rank does, and is still farther than all others.
    """
    return _beyond_limit(x, np.log1p)


def _stretch(x: Array) -> Array:
    """The inverse of :func:`squash`."""
    return _beyond_limit(x, np.expm1)


def _beyond_limit(x: Array, change: Callable[[Array], Array]) -> Array:
    beyond = np.abs(x) - SQUASH_LIMIT
    return np.where(beyond > 0, np.sign(x) * (SQUASH_LIMIT + change(np.maximum(beyond, 0))), x)


@dataclass(frozen=True)
class InputRange:
    """Smallest and largest value of each squashed input among rows, [D] each."""

    low: Array
    high: Array

    @classmethod
    def of(cls, x: Array) -> InputRange:
        """The range of rows x [N, D]."""
        return cls(x.min(0), x.max(0))

    def including(self, x: Array) -> InputRange:
        """The range of these rows and more rows x [N, D]."""
        return InputRange(np.minimum(self.low, x.min(0)), np.maximum(self.high, x.max(0)))

    def extrapolation_factor(self, x: Array) -> Array:
        """Factor of the function's variance at squashed rows [N, D]: 1 in the range, 1 + d² at a distance d from it.

        Far from all rows a function is known no better than a straight line whose slope is unknown.
        """
        outside = np.maximum(np.maximum(x - self.high, self.low - x), 0.0)
        return 1.0 + np.square(outside).sum(-1)

    def drift(self, x: Array, slopes: Callable[[], Array], n_outputs: int) -> Array:
        """F [D, N, C] of what functions may do outside the range, at rows x [N, D] in standard units.

        Networks see squashed inputs, on which no function goes on as a straight line. So a line is added whose slopes
        are unknown, and as large as ``slopes()`` [D, C], those inside the range: FᵀF is its covariance between rows.
        """
        over = np.maximum(x - _stretch(self.high), 0.0) - np.maximum(_stretch(self.low) - x, 0.0)
        if not over.any():
            return np.zeros((x.shape[1], len(x), n_outputs))  # as many as elsewhere: one seed draws the same functions
        return slopes()[:, None] * np.clip(over, -FARTHEST, FARTHEST).T[..., None]

    def points(self) -> Array:
        """Rows inside the range, the same at every call, [64, D]."""
        middle, half = 0.5 * (self.low + self.high), 0.5 * (self.high - self.low)
        return middle + half * np.random.default_rng(0).uniform(-1, 1, size=(64, len(middle)))


def ordinary_rows(y: Array, likelihood: str, like: Array | None = None) -> Rows:
    """Rows [N] whose targets [N] or [N, C] are not absurd, on the scale that the likelihood works on.

    A target is absurd beyond 30 times the ninth decile of the distance from the median; for amounts these are distances
    of logarithms, 6 times the ninth decile, and only large ones count. Fractions, grades and bounds never are. Median
    and decile are those of the targets themselves, or of other targets ``like`` [M] or [M, C].
    """
    like = y if like is None else like
    columns, usual = y.reshape(len(y), -1), like.reshape(len(like), -1)
    if LIKELIHOODS[likelihood].amounts:
        shift = LogNormal.shift(like)
        with np.errstate(divide="ignore", invalid="ignore"):  # an amount below all that are usual is not large
            columns, usual = np.log(columns + shift), np.log(usual + shift)
        return np.asarray(~(columns - np.median(usual, axis=0) > _reach(usual, LOG_REACH)).any(1))
    if LIKELIHOODS[likelihood].closed_form:
        return np.asarray((np.abs(columns - np.median(usual, axis=0)) <= _reach(usual, REACH)).all(1))
    return np.ones(len(y), dtype=np.bool_)


def _reach(columns: Array, factor: float) -> Array:
    limit = factor * np.quantile(np.abs(columns - np.median(columns, axis=0)), 0.9, axis=0)
    return np.where(limit > 0, limit, np.inf)  # nine of ten are the same: the rest cannot be told from mistakes


# -- size of the networks and length of their training ----------------------------------------------------------------

MANY_ROWS = 2_000


@dataclass(frozen=True)
class TrainingPlan:
    """How long and how fast members train.

    Members train at a constant rate until the held-out rows of all have not been predicted better for ``patience``
    steps, go back to where they were best, and take ``refit_steps`` more on all rows, at a rate that falls to zero.
    """

    max_steps: int = 400
    patience: int = 40
    refit_steps: int = 40
    rate: float = 0.03
    batch_rows: int = 4096


@dataclass(frozen=True)
class Size:
    """The hidden layers, the ensemble and its training."""

    hidden: tuple[int, ...]
    activations: tuple[str, ...]
    n_members: int
    plan: TrainingPlan

    def changed(self, **asked: Any) -> Size:
        """The same with what the user asks for; None asks for nothing."""
        given = {name: value for name, value in asked.items() if value is not None}
        training = ("max_steps", "patience", "batch_rows", "rate")
        plan: dict[str, Any] = {name: given.pop(name) for name in training if name in given}
        if "max_steps" in plan:  # a short training has a short end
            plan["refit_steps"] = min(self.plan.refit_steps, plan["max_steps"])
        if given.get("n_members") == 1:  # one network has one activation
            given.setdefault("activations", self.activations[:1])
        return replace(self, **given, plan=replace(self.plan, **plan))

    def step_work(self, n_rows: int, n_inputs: int) -> float:
        """Multiply-adds of a training step on rows of so many inputs, about."""
        widths = (n_inputs, *self.hidden)
        layers = sum((n_in + 1) * n_out for n_in, n_out in pairwise(widths))
        n_features = sum((*self.hidden[-1:], count_directions(n_rows, n_inputs) or n_inputs, 1))
        return float(self.n_members * min(n_rows, self.plan.batch_rows) * (layers + n_features**2))


FEW = Size((100,), ("relu", "tanh"), 12, TrainingPlan(max_steps=400, patience=40, refit_steps=40, batch_rows=4096))
"""One wide layer is nearest to a Gaussian process, and many members share the work of judging few rows."""

MANY = Size((50, 50), ("relu", "tanh"), 6, TrainingPlan(max_steps=1500, patience=100, refit_steps=100, batch_rows=2048))
"""With many rows two layers learn more than one, and fewer members are enough."""

CLASSES = Size((100,), ("relu", "tanh"), 8, TrainingPlan(max_steps=600, patience=60, refit_steps=60, batch_rows=2048))
"""One wide layer was better than two on most tables of classes."""


def choose_size(n_rows: int, *, classes: bool = False) -> Size:
    """Choose by the number of rows; sizes were chosen on held-out training rows of the development tables."""
    if n_rows < MANY_ROWS:
        return FEW
    return CLASSES if classes else MANY


class FitSettings(NamedTuple):
    """The size of a fit, the seed of its random numbers, and who is told of its progress."""

    size: Size
    seed: int
    callbacks: Sequence[Callback] = ()


FEW_INPUTS = 200  # that are linear features of their own, however few rows there are
MOST_DIRECTIONS = 500  # of inputs, in which functions may be linear


def count_directions(n_rows: int, n_inputs: int) -> int:
    """Directions that stand for the inputs among the features of so many rows; 0 where inputs do so themselves.

    Work and memory of output layers grow with the square of their features, and fewer rows than inputs cannot tell more
    directions apart than there are rows.
    """
    n_directions = min(n_rows, MOST_DIRECTIONS)
    return n_directions if n_inputs > max(n_directions + 1, FEW_INPUTS) else 0


# -- threads ----------------------------------------------------------------------------------------------------------
# Small matrices gain nothing from several threads, and on a busy machine threads that wait for each other take many
# times as long as one. Sums of several threads also round differently. So small work runs in one thread: a seed then
# gives one model, whatever number of threads the user has set.

WORK_OF_A_THREAD = 3e7  # multiply-adds between two waits for all threads, which take a thread some milliseconds


_lock = Lock()
_open_blocks: list[int] = []  # one for each of all Python threads: PyTorch's number of threads before the first


@contextmanager
def use_threads(n_threads: int) -> Iterator[None]:
    """Let PyTorch and BLAS use ``n_threads`` in this block, and as many as before afterwards, also after an error.

    PyTorch's number belongs to the Python thread that sets it, but Python threads that start meanwhile begin with it.
    The last block that ends puts back what new ones begin with. BLAS (of NumPy and SciPy) has one number, which is set
    by the main thread alone, so that blocks of several threads do not put back each other's.
    """
    before = torch.get_num_threads()
    with _lock:
        _open_blocks.append(_open_blocks[0] if _open_blocks else before)
    torch.set_num_threads(n_threads)
    in_main = current_thread() is main_thread()
    try:
        with _blas_libraries().limit(limits=n_threads, user_api="blas") if in_main else nullcontext():
            yield
    finally:
        with _lock:
            common = _open_blocks.pop()
            torch.set_num_threads(before if _open_blocks else common)


@cache
def _blas_libraries() -> ThreadpoolController:
    """The BLAS libraries of this process, which are searched for once."""
    return ThreadpoolController()


@contextmanager
def threads_for(work: float) -> Iterator[None]:
    """Let PyTorch use as many threads in this block as ``work`` is worth, at most those that are set.

    Args:
        work: multiply-adds of one step, or of one call.
    """
    allowed = torch.get_num_threads()
    wanted = max(1, min(allowed, int(work / WORK_OF_A_THREAD)))
    if wanted == allowed:
        yield
        return
    with use_threads(wanted):
        yield


# -- rows that occur more than once, exactly or up to rounding --------------------------------------------------------
# A copy of a row that a member has seen is no test of it: held-out scores would look far too good, and intervals would
# be far too narrow. So copies stay together when rows are held out, and count once in what these say.

CLOSE = 0.02  # of a standard deviation, over the number of rows: strangers as close in a column are one row in fifty
MOST_CLOSE = 1e-3  # standard deviations
NEIGHBOURS = 3  # that a row is compared with, along a random direction


def find_repeats(x: Array, y: NDArray[np.generic] | None) -> NDArray[np.int64]:
    """Number [N] of each different row of inputs x [N, D] and targets y [N, ...], the same for its copies.

    Rows are copies if all columns are nearly equal, and one column has values that no other row has. Where columns have
    few values, such as categories, equal rows are to be expected and each counts.
    """
    n_rows = len(x)
    columns = [x] if y is None else [x, np.asarray(y, dtype=np.float64).reshape(n_rows, -1)]
    values = _standard(np.concatenate(columns, 1))
    close = min(MOST_CLOSE, CLOSE / n_rows)
    direction = np.random.default_rng(0).uniform(0.5, 1.5, values.shape[1])
    order = np.argsort(values @ direction, kind="stable")
    ordered = values[order]
    pairs = []
    for step in range(1, min(NEIGHBOURS, n_rows - 1) + 1):
        alike = (np.abs(ordered[step:] - ordered[:-step]) <= close).all(1)
        pairs.append(np.stack([order[:-step][alike], order[step:][alike]]))
    joined = np.concatenate(pairs, 1) if pairs else np.zeros((2, 0), dtype=np.int64)
    if not joined.shape[1]:
        return np.arange(n_rows)
    links = sparse.coo_array((np.ones(joined.shape[1], dtype=np.int8), tuple(joined)), shape=(n_rows, n_rows))
    _, label = csgraph.connected_components(links, directed=False)
    return _without_coincidences(values, np.asarray(label, dtype=np.int64))


def _standard(values: Array) -> Array:
    """Columns in units of their standard deviation; infinite bounds lie far outside."""
    finite = np.isfinite(values)
    values = np.where(finite, values, np.sign(values) * 1e3 * np.abs(np.where(finite, values, 0.0)).max(initial=1.0))
    scale = values.std(0)
    return (values - values.mean(0)) / np.where(scale > 0, scale, 1.0)


def _without_coincidences(values: Array, label: NDArray[np.int64]) -> NDArray[np.int64]:
    """Take apart the sets of rows in which every column has values that other rows have too."""
    size = np.bincount(label)
    several = np.flatnonzero(size > 1)
    order = np.argsort(label, kind="stable")
    ends = np.cumsum(size)
    copies = np.zeros(len(size), dtype=np.bool_)
    for column in values.T:
        ordered, grouped = np.sort(column), column[order]
        low, high = (part.reduceat(grouped, ends - size)[several] for part in (np.minimum, np.maximum))
        inside = np.searchsorted(ordered, high, "right") - np.searchsorted(ordered, low, "left")
        copies[several] |= inside == size[several]
    alone = ~copies[label]
    label = label.copy()
    label[alone] = len(size) + np.arange(int(alone.sum()))
    return np.unique(label, return_inverse=True)[1].astype(np.int64)


# -- rows that members never see --------------------------------------------------------------------------------------

FOLDS = 4  # at least, so that a member sees three quarters of the rows
REGION_SHARE = 0.25
MIN_ROWS = 10  # fewer rows are not worth holding out
SPARSITY = 2.0  # inputs that the direction of a region depends on, on average


def random_folds(n_rows: int, n_folds: int, rng: np.random.Generator) -> Rows:
    """Split rows into folds of equal size: True where fold k holds row n, [n_folds, N]."""
    fold = np.empty(n_rows, dtype=np.int64)
    fold[rng.permutation(n_rows)] = np.arange(n_rows) % n_folds
    return np.asarray(fold == np.arange(n_folds)[:, None])


def regions(x: Array, n_regions: int, share: float, rng: np.random.Generator) -> Rows:
    """Choose regions of standardised inputs x [N, D] that hold a ``share`` of the rows each: [n_regions, N].

    A region is what lies between two parallel planes, across a random direction of few inputs: a gap between other rows
    for every other region, one of the two ends for the rest.
    """
    n_rows, n_inputs = x.shape
    inside = np.zeros((n_regions, n_rows), dtype=np.bool_)
    for k in range(n_regions):
        direction = rng.standard_normal(n_inputs) * (rng.random(n_inputs) < SPARSITY / n_inputs)
        if not direction.any():
            direction[rng.integers(n_inputs)] = 1.0
        along = x @ direction + 1e-6 * rng.standard_normal(n_rows)  # equal rows in random order
        rank = along.argsort().argsort() / n_rows
        start = (1 - share) * (rng.random() if k % 2 else rng.integers(2))
        inside[k] = (rank >= start) & (rank < start + share)
    return inside


@dataclass(frozen=True)
class Group:
    """Members that do not see the same rows."""

    members: NDArray[np.int64]
    held_out: Rows  # [N]
    region: bool


@dataclass(frozen=True)
class Design:
    """Held-out rows of every member.

    Two members share a group where there are enough, so that their disagreement on rows that neither has seen is
    known: member e is in group e mod G. A third of the groups hold out a region, the others random folds. Copies of a
    row are held out together, and the first of them alone counts in what held-out rows say.
    """

    groups: tuple[Group, ...]
    n_members: int
    first: Rows  # of the copies of a row, [N]

    @classmethod
    def choose(cls, x: Array, n_members: int, rng: np.random.Generator, y: NDArray[np.generic] | None = None) -> Design:
        """Choose groups for standardised rows x [N, D]; targets y [N, ...] tell copies from other rows."""
        _, position, copy = np.unique(find_repeats(x, y), return_index=True, return_inverse=True)
        first = np.zeros(len(x), dtype=np.bool_)
        first[position] = True
        if len(position) < MIN_ROWS:
            return cls((), n_members, first)
        if first.all():
            position = copy = np.arange(len(x))  # in the order of the rows
        n_groups = max(1, n_members // 2)
        n_groups = min(n_groups, len(position) + len(position) // 3)  # no fold is empty
        n_regions = n_groups // 3
        n_folds = n_groups - n_regions
        folds = random_folds(len(position), max(FOLDS, n_folds), rng)[:n_folds]
        apart = regions(x[position], n_regions, REGION_SHARE, rng)
        groups = [
            Group(np.arange(g, n_members, n_groups), held_out[copy], g >= n_folds)
            for g, held_out in enumerate([*folds, *apart])
        ]
        return cls(tuple(groups), n_members, first)

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about the rows that a user should read."""
        n_copies = int((~self.first).sum())
        said = f"{n_copies} of {len(self.first)} rows repeat others, exactly or nearly: they are held out together"
        return (f"{said} and count once in held-out scores.",) if n_copies else ()

    @property
    def unseen(self) -> Rows:
        """Rows that the members of each group must not see, [G, N]."""
        return np.array([group.held_out for group in self.groups], dtype=np.bool_).reshape(-1, len(self.first))

    @property
    def held_out(self) -> Rows:
        """Rows that each member must not see, [E, N]."""
        whole = np.zeros((self.n_members, len(self.first)), dtype=np.bool_)
        for group in self.groups:
            whole[group.members] = group.held_out
        return whole

    @property
    def stopping_members(self) -> list[int]:
        """Members whose held-out rows are like the others, and so say when to stop."""
        return [int(member) for group in self.groups if not group.region for member in group.members]


@dataclass(frozen=True)
class FitRows:
    """Rows of a fit: squashed inputs [N, D], targets [N, ...] and weights [N], and which of them members see."""

    x: Array
    y: NDArray[Any]
    weight: Array
    design: Design
    rng: np.random.Generator
    generator: torch.Generator

    @classmethod
    def of(cls, x: Array, y: NDArray[Any], weight: Array | None, n_members: int, seed: int) -> FitRows:
        """Rows with inputs in standard units, and a design for them."""
        x, rng = squash(x), np.random.default_rng(seed)
        design = Design.choose(x, n_members, rng, y)
        weight = np.ones(len(x)) if weight is None else weight
        return cls(x, y, weight, design, rng, torch.Generator().manual_seed(seed))

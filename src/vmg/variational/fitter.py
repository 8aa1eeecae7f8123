"""Fits networks by the variational objective: all members of all training sets train as one batched network.

A :class:`Method` says what is fitted. A fitted network can learn online: the posterior so far becomes the prior of rows
to come.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vmg.fit.design import threads_for
from vmg.likelihoods import CategoricalLikelihood, GaussianLikelihood, Likelihood
from vmg.nn.bayesian import use_generator
from vmg.nn.matrix_gaussian import MatrixGaussianLinear
from vmg.nn.mlp import MLP
from vmg.prediction import ClassPrediction, Prediction, draw_functions
from vmg.priors import FixedPrior
from vmg.training import Callback, History, Progress, Schedule, cosine, train

__all__ = [
    "STANDARD",
    "Array",
    "BestSoFar",
    "Budget",
    "Choice",
    "EarlyStopping",
    "Fitted",
    "Fitter",
    "LikelihoodFactory",
    "Method",
    "NetworkFactory",
    "Search",
    "State",
    "TrainingSet",
    "draw_outputs",
    "hold_out",
    "posterior_as_prior",
    "predictions",
    "separate",
    "stack",
    "without_pseudo_data",
]

Array = NDArray[np.float64]

VALIDATION_DRAWS = 32  # posterior draws behind one check of early stopping
PRIOR_DRAWS = 256  # weight draws behind the moments of a posterior; their standard deviations are then known to 4 %
REPORTS = 50  # of a whole run
STEPS_END_AT = 40_000  # rows, from which steps grow no further
SMALLEST_BATCH, LARGEST_BATCH = 32, 256


# -- rows and targets -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrainingSet:
    """Rows of one replica in the network's units."""

    x: Tensor  # [N, D]
    y: Tensor  # [N, C] or, for classes, [N]
    weight: Tensor | None  # [N]
    unit: Array  # what one standard unit of each target is in the target's own, [C]; of each class, a one

    def take(self, index: Tensor) -> TrainingSet:
        """Some of the rows."""
        weight = None if self.weight is None else self.weight[index]
        return TrainingSet(self.x[index], self.y[index], weight, self.unit)


def hold_out(
    sets: list[TrainingSet], fraction: float, generator: torch.Generator
) -> tuple[list[TrainingSet], list[TrainingSet]]:
    """Every set without a random fraction of its rows, and these rows."""
    inside: list[TrainingSet] = []
    outside: list[TrainingSet] = []
    for rows in sets:
        n = len(rows.x)
        n_held = min(max(1, round(fraction * n)), n - 1)
        if n_held < 1:
            raise ValueError(f"early_stopping needs at least 2 rows to hold one out; got {n}")
        order = torch.randperm(n, generator=generator)
        inside.append(rows.take(order[n_held:]))
        outside.append(rows.take(order[:n_held]))
    return inside, outside


def stack(sets: list[TrainingSet], n_members: int) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Training sets as tensors of [replicas, N, ...], padded to one length, with the row counts where these differ."""
    if len(sets) == 1:
        only = sets[0]
        return only.x, only.y, only.weight, None

    def gather(parts: list[Tensor]) -> Tensor:
        return nn.utils.rnn.pad_sequence(parts, batch_first=True).repeat_interleave(n_members, 0)

    weights = [s.weight for s in sets if s.weight is not None]
    sizes = torch.tensor([len(s.x) for s in sets]).repeat_interleave(n_members)
    return gather([s.x for s in sets]), gather([s.y for s in sets]), gather(weights) if weights else None, sizes


@torch.no_grad()
def predictions(likelihood: Any, functions: Tensor, n_sets: int = 1) -> list[Any]:
    """Predictive distributions in the network's units, one for each set, whose members are pooled.

    ``functions`` [S, sets x members, N, C] are posterior draws of the network's outputs.
    """
    kind: Callable[..., Any] = partial(Prediction, squeeze=False)
    if isinstance(likelihood, CategoricalLikelihood):
        kind = partial(ClassPrediction, classes=np.arange(functions.shape[-1]))
    parts = likelihood.components(functions)  # of which N and C may be 1
    whole = (part.double().expand(*functions.shape[:2], *part.shape[-2:]) for part in parts)
    each = zip(*(part.chunk(n_sets, 1) for part in whole), strict=True)
    return [kind(*(part.flatten(0, 1).numpy() for part in own)) for own in each]


# -- what is fitted ---------------------------------------------------------------------------------------------------

Choice = Any
"""A search's choice for one network, such as a limit on noise or a dropout rate; factories read it."""

NetworkFactory = Callable[[int, int, Sequence[Choice]], MLP]
"""(inputs, outputs, choices) to an untrained network of as many replicas as there are choices."""

LikelihoodFactory = Callable[[int, Array, Sequence[Choice]], Likelihood]
"""(steps, units, choices) to a fresh likelihood of as many replicas as there are choices.

``units`` [replicas, C] are those of the training sets.
"""

Search = Callable[["Fitter", list[TrainingSet]], list[list[Choice]]]
"""The choice of each member, for each training set; a set's own rows alone decide."""


@dataclass(frozen=True)
class Method:
    """One method: factories, the search, and how the network trains."""

    network: NetworkFactory
    likelihood: LikelihoodFactory
    search: Search
    schedule: Schedule = cosine

    def make(self, n_inputs: int, n_steps: int, units: Array, choices: Sequence[Choice]) -> tuple[MLP, Likelihood]:
        """An untrained network and its likelihood, a replica for each choice."""
        likelihood = self.likelihood(n_steps, units, choices)
        n_outputs: Any = getattr(likelihood, "n_network_outputs", units.shape[1])
        return self.network(n_inputs, n_outputs, choices), likelihood


@dataclass(frozen=True)
class Budget:
    """Steps grow with the root of the number of rows, batches with the number itself."""

    fewest_steps: int
    most_steps: int
    batches: int
    """Batches of an epoch, about, while their size is between the limits."""
    trial_batches: int = 64
    """The same for trials: short ones of large batches choose limits under which longer training overfits."""

    def steps(self, n_rows: int) -> int:
        """Steps of the optimiser."""
        grown = self.most_steps * math.sqrt(n_rows / STEPS_END_AT)
        return int(np.clip(grown, self.fewest_steps, self.most_steps))

    def batch_size(self, n_rows: int) -> int:
        """Rows of a minibatch, a power of two."""
        nearest = 2 ** round(math.log2(max(n_rows, 2) / self.batches))
        return int(np.clip(nearest, SMALLEST_BATCH, LARGEST_BATCH))


STANDARD = Budget(12_000, 20_000, batches=64)


def draw_outputs(network: MLP, x: Tensor, n_draws: int, seed: int) -> Tensor:
    """Posterior draws [S, replicas, N, C] of the outputs at x, with as many threads as that work is worth."""
    with threads_for(_work(network, n_draws * x.shape[-2])):
        return draw_functions(network, x, n_draws, seed)


def _work(network: MLP, n_rows: int) -> float:
    """Multiply-adds, about, of a network at some rows: one for each parameter."""
    return float(n_rows * sum(p.numel() for p in network.parameters()))


# -- early stopping ---------------------------------------------------------------------------------------------------

State = tuple[dict[str, Tensor], dict[str, Tensor]]
"""``state_dict`` of a network and of its likelihood."""


class EarlyStopping(NamedTuple):
    """Stop when held-out rows have not improved by ``tol`` for ``patience`` checks."""

    fraction: float = 0.1  # of the rows that is held out
    patience: int = 10
    tol: float = 1e-4


class BestSoFar:
    """A callback of training: keeps the state with the best held-out score, and ends training when none improves.

    Each set is judged by itself, so that none learns anything from another's rows. ``log_probs`` gives log p(y) of the
    held-out rows of each set under the present state of ``modules``, the network and its likelihood.
    """

    def __init__(
        self,
        modules: tuple[MLP, Likelihood],
        held_out: list[TrainingSet],
        log_probs: Callable[[], list[Array]],
        rule: EarlyStopping,
    ) -> None:
        self._modules, self._held_out, self._log_probs, self._rule = modules, held_out, log_probs, rule
        self._waited = [0] * len(held_out)
        self.scores = [-math.inf] * len(held_out)
        self.states: list[State | None] = [None] * len(held_out)

    def __call__(self, progress: Progress) -> bool:
        now: State | None = None
        for k, (rows, log_probs) in enumerate(zip(self._held_out, self._log_probs(), strict=True)):
            if self._waited[k] >= self._rule.patience:
                continue
            score = float(np.average(log_probs, weights=None if rows.weight is None else rows.weight.numpy()))
            self._waited[k] += 1
            if score > self.scores[k] + self._rule.tol:
                now = now or copy.deepcopy((self._modules[0].state_dict(), self._modules[1].state_dict()))
                self.scores[k], self.states[k], self._waited[k] = score, now, 0
        return min(self._waited) >= self._rule.patience


# -- fitting ----------------------------------------------------------------------------------------------------------


@dataclass
class Fitted:
    """A trained network and its likelihood, with the choice behind each replica."""

    network: MLP
    likelihood: Likelihood
    history: History
    n_epochs: int
    choices: Sequence[Choice] = ()
    """Empty after an update, which makes no choice."""


@dataclass(frozen=True)
class Fitter:
    """Fits ``n_members`` networks to each of several training sets."""

    method: Method
    n_members: int = 1
    batch_size: int | None = None
    """Rows of a minibatch; None is what ``budget`` says."""
    n_epochs: int | None = None
    """Passes over the data; None is what ``budget`` says."""
    most_steps: int | None = None
    learning_rate: float = 0.01
    averaging: float | None = 0.99
    budget: Budget = STANDARD
    early_stopping: EarlyStopping | None = None
    callbacks: tuple[Callback, ...] = ()
    seed: int = 0

    def fit(self, sets: list[TrainingSet]) -> list[Fitted]:
        """One fit for each training set: choose on held-out rows, and train on all."""
        choices, n = self.method.search(self, sets), self.n_members
        whole, states = self.train(sets, choices)
        return [
            self._replicas(whole, rows, state, members, slice(k * n, (k + 1) * n))
            for k, (rows, state, members) in enumerate(zip(sets, states, choices, strict=True))
        ]

    def train(self, sets: list[TrainingSet], choices: list[list[Choice]]) -> tuple[Fitted, list[State]]:
        """Train fresh networks with given choices, one for each member of each set.

        Returns all of them as one batched network, and the state in which each set's replicas are at their best.
        """
        generator = torch.Generator().manual_seed(self.seed)
        every = [choice for members in choices for choice in members]
        units = np.repeat([rows.unit for rows in sets], self.n_members, axis=0)
        network, likelihood = self.method.make(sets[0].x.shape[-1], self._length(sets)[1], units, every)
        network.reset_parameters(generator)
        return self._run(network, likelihood, sets, generator)

    def update(self, network: MLP, likelihood: Likelihood, rows: TrainingSet) -> Fitted:
        """Learn from new rows only: the posterior so far becomes the prior."""
        network = posterior_as_prior(network, torch.Generator().manual_seed(self.seed))
        likelihood = likelihood.posterior_as_prior() if isinstance(likelihood, GaussianLikelihood) else likelihood
        fitted, [state] = self._run(network, likelihood, [rows], torch.Generator().manual_seed(self.seed))
        for module, kept in zip((network, likelihood), state, strict=True):
            module.load_state_dict(kept)
        return fitted

    def held_out_log_probs(
        self, network: MLP, likelihood: Likelihood, held_out: list[TrainingSet], n_draws: int
    ) -> list[Array]:
        """log p(y) in standard units of every held-out row, for the replicas of each set."""
        functions = draw_outputs(network, stack(held_out, self.n_members)[0], n_draws, self.seed)
        each = zip(predictions(likelihood, functions, len(held_out)), held_out, strict=True)
        return [one[: len(rows.y)].log_prob(rows.y.numpy()) for one, rows in each]

    def _length(self, sets: list[TrainingSet]) -> tuple[int, int, int]:
        """Rows of a batch, steps in all, and steps of an epoch; the smallest set decides."""
        smallest = min(len(rows.x) for rows in sets)
        batch_size = min(self.budget.batch_size(smallest) if self.batch_size is None else self.batch_size, smallest)
        per_epoch = max(1, smallest // batch_size)
        n_steps = self.budget.steps(smallest) if self.n_epochs is None else self.n_epochs * per_epoch
        return batch_size, n_steps if self.most_steps is None else min(n_steps, self.most_steps), per_epoch

    def _run(
        self, network: MLP, likelihood: Likelihood, sets: list[TrainingSet], generator: torch.Generator
    ) -> tuple[Fitted, list[State]]:
        batch_size, n_steps, per_epoch = self._length(sets)
        callbacks, best, train_sets = [*self.callbacks], None, sets
        if self.early_stopping is not None:
            train_sets, held_out = hold_out(sets, self.early_stopping.fraction, generator)
            log_probs = partial(self.held_out_log_probs, network, likelihood, held_out, VALIDATION_DRAWS)
            best = BestSoFar((network, likelihood), held_out, log_probs, self.early_stopping)
            callbacks.append(best)
        x, y, weight, n_rows = stack(train_sets, self.n_members)
        with threads_for(_work(network, batch_size)):
            history = train(
                network,
                likelihood,
                x,
                y,
                n_steps=n_steps,
                batch_size=batch_size,
                learning_rate=self.learning_rate,
                schedule=self.method.schedule,
                averaging=self.averaging,
                weight=weight,
                n_rows=n_rows,
                batch_shape=(len(sets) * self.n_members,),
                callbacks=callbacks,
                report_every=max(1, n_steps // REPORTS),
                generator=generator,
            )
        last = network.state_dict(), likelihood.state_dict()
        states = [last] * len(sets) if best is None else [state or last for state in best.states]
        return Fitted(network, likelihood, history, math.ceil(history.last.step / per_epoch)), states

    def _replicas(
        self, whole: Fitted, rows: TrainingSet, state: State, choices: list[Choice], members: slice
    ) -> Fitted:
        """The networks of one training set, as a fit of their own; what replicas share is copied as it is."""
        modules = self.method.make(rows.x.shape[-1], 1, np.repeat([rows.unit], len(choices), axis=0), choices)
        for part, module in zip(state, modules, strict=True):
            shapes = {name: value.shape for name, value in module.state_dict().items()}
            own = {name: value if value.shape == shapes[name] else value[members] for name, value in part.items()}
            module.eval().load_state_dict(own)
        return Fitted(*modules, whole.history, whole.n_epochs, choices)


# -- learning online ----------------------------------------------------------------------------------------------


@torch.no_grad()
def posterior_as_prior(network: MLP, generator: torch.Generator) -> MLP:
    """A copy of ``network`` that starts at its posterior and is pulled towards it.

    A layer's posterior includes its pseudo-data, and whatever pseudo-data say is free of charge: new ones would fit the
    new rows and forget the old. So each layer becomes one without pseudo-data whose matrix Gaussian, with diagonal
    covariances, has the mean of the old posterior and the nearest product of row and column variances in the logarithm,
    both as its prior and as its starting point (variational continual learning, Nguyen et al. 2018).
    """
    updated = copy.deepcopy(network)
    use_generator(updated, generator)
    updated.layers = nn.ModuleList(_moments_matched(layer, generator) for layer in updated.layers)
    return updated


def _moments_matched(layer: nn.Module, generator: torch.Generator) -> MatrixGaussianLinear:
    assert isinstance(layer, MatrixGaussianLinear)
    weights = layer.sample_weight((PRIOR_DRAWS,))
    loc = weights.mean(0)
    row_scale, column_scale = separate(weights.var(0))
    matched = without_pseudo_data(layer, FixedPrior(loc, row_scale, column_scale)).to(loc)
    assert matched.loc is not None
    matched.loc.copy_(loc)
    matched.row.reset(row_scale.log(), generator)
    matched.column.reset(column_scale.log(), generator)
    return matched


def without_pseudo_data(layer: MatrixGaussianLinear, prior: FixedPrior) -> MatrixGaussianLinear:
    """An untrained layer of the same size with another prior, as an online update leaves it."""
    sizes = layer.in_features, layer.out_features, layer.has_bias
    return MatrixGaussianLinear(*sizes, prior=prior, batch_shape=layer.batch_shape)


def separate(variance: Tensor) -> tuple[Tensor, Tensor]:
    """Scales r, c with r_i² c_j² closest to variance [..., R, C] in least squares of logarithms."""
    log_variance = variance.clamp_min(torch.finfo(variance.dtype).tiny).log()
    level = log_variance.mean((-2, -1), keepdim=True)
    row = log_variance.mean(-1) - 0.5 * level.squeeze(-1)
    column = log_variance.mean(-2) - 0.5 * level.squeeze(-2)
    return (0.5 * row).exp(), (0.5 * column).exp()

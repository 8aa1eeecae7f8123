"""Fits networks by the lower bound: all members of all training sets train as one batched network."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vmg.likelihoods import Likelihood
from vmg.nn.mlp import MLP
from vmg.training import Callback, History, Progress, train
from vmg.variational.method import STANDARD, Budget, Choice, Method
from vmg.variational.online import check_same_network, likelihood_as_prior, posterior_as_prior
from vmg.variational.targets import Targets

__all__ = ["BestSoFar", "EarlyStopping", "Fitted", "Fitter", "State", "TrainingSet", "hold_out", "stack"]

Array = NDArray[np.float64]

State = tuple[dict[str, Tensor], dict[str, Tensor]]
"""``state_dict`` of a network and of its likelihood."""

VALIDATION_DRAWS = 32  # posterior draws behind one check of early stopping
REPORTS = 50  # of a whole run


# -- rows -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrainingSet:
    """Rows of one replica in the network's units."""

    x: Tensor  # [N, D]
    y: Tensor  # [N, C] or, for classes, [N]
    weight: Tensor | None  # [N]
    unit: Array  # what one standard unit of each target is in the target's own, [C]


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
        for target, index in ((outside, order[:n_held]), (inside, order[n_held:])):
            w = None if rows.weight is None else rows.weight[index]
            target.append(TrainingSet(rows.x[index], rows.y[index], w, rows.unit))
    return inside, outside


def stack(sets: list[TrainingSet], n_members: int) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Training sets as tensors of [replicas, N, ...], padded to one length, with the row counts where these differ."""
    if len(sets) == 1:
        only = sets[0]
        return only.x, only.y, only.weight, None
    longest = max(len(s.x) for s in sets)

    def pad(rows: Tensor) -> Tensor:
        return torch.cat([rows, rows.new_zeros(longest - len(rows), *rows.shape[1:])])

    def gather(parts: list[Tensor]) -> Tensor:
        return torch.stack([pad(part) for part in parts]).repeat_interleave(n_members, 0)

    weights = [s.weight for s in sets if s.weight is not None]
    sizes = torch.tensor([len(s.x) for s in sets]).repeat_interleave(n_members)
    return gather([s.x for s in sets]), gather([s.y for s in sets]), gather(weights) if weights else None, sizes


# -- early stopping ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EarlyStopping:
    """Stop when held-out rows have not improved by ``tol`` for ``patience`` checks."""

    fraction: float = 0.1  # of the rows that is held out
    patience: int = 10
    tol: float = 1e-4


class BestSoFar:
    """A callback of training: keeps the state with the best held-out score, and ends training when none improves.

    Each set is judged by itself, so that none learns anything from another's rows.

    Args:
        network, likelihood: what is being trained.
        held_out: rows of each set.
        log_probs: gives log p(y) of the held-out rows of each set, under the present state.
        rule: when to stop.
    """

    def __init__(
        self,
        network: MLP,
        likelihood: Likelihood,
        held_out: list[TrainingSet],
        log_probs: Callable[[], list[NDArray[np.float64]]],
        rule: EarlyStopping,
    ) -> None:
        self._modules, self._held_out, self._log_probs, self._rule = (network, likelihood), held_out, log_probs, rule
        self._waited = [0] * len(held_out)
        self.scores = [-math.inf] * len(held_out)
        self.states: list[State | None] = [None] * len(held_out)

    def __call__(self, progress: Progress) -> bool:
        now: State | None = None
        log_probs = self._log_probs()
        for k, rows in enumerate(self._held_out):
            if self._waited[k] >= self._rule.patience:
                continue
            score = float(np.average(log_probs[k], weights=None if rows.weight is None else rows.weight.numpy()))
            if score > self.scores[k] + self._rule.tol:
                network, likelihood = self._modules
                now = now or (_copied(network.state_dict()), _copied(likelihood.state_dict()))
                self.scores[k], self.states[k], self._waited[k] = score, now, 0
            else:
                self._waited[k] += 1
        return min(self._waited) >= self._rule.patience


def _copied(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in state.items()}


# -- fitting ----------------------------------------------------------------------------------------------------------


@dataclass
class Fitted:
    """A trained network and its likelihood, with the choice behind each replica."""

    network: MLP
    likelihood: Likelihood
    history: History
    n_epochs: int
    choices: Sequence[Choice] = ()
    """Empty where networks were trained further, as no choice was made."""


@dataclass(frozen=True)
class Fitter:
    """Fits ``n_members`` networks to each of several training sets."""

    method: Method
    targets: Targets
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

    def fit(self, sets: list[TrainingSet], choices: list[list[Choice]] | None = None) -> list[Fitted]:
        """One fit for each training set: choose on held-out rows, unless ``choices`` are given, and train on all."""
        choices = self.method.search.choose(self, sets) if choices is None else choices
        whole, states = self.train(sets, choices)
        if len(sets) == 1:
            return [_loaded(whole, states[0])]
        return [
            self._replicas(whole, rows, state, members, slice(k * self.n_members, (k + 1) * self.n_members))
            for k, (rows, state, members) in enumerate(zip(sets, states, choices, strict=True))
        ]

    def train(self, sets: list[TrainingSet], choices: list[list[Choice]]) -> tuple[Fitted, list[State]]:
        """Train fresh networks with given choices, one for each member of each set.

        Returns all of them as one batched network, and the state in which each set's replicas are at their best.
        """
        generator = torch.Generator().manual_seed(self.seed)
        every = [choice for members in choices for choice in members]
        network = self.make_network(sets[0].x.shape[-1], every)
        network.reset_parameters(generator)
        units = np.repeat([rows.unit for rows in sets], self.n_members, axis=0)
        likelihood = self.method.likelihood.make(self.targets.n_targets, self._length(sets)[1], units, every)
        whole, states = self._run(network, likelihood, sets, generator)
        return replace(whole, choices=every), states

    def train_further(self, network: MLP, likelihood: Likelihood, rows: TrainingSet) -> Fitted:
        """Train copies of networks from where these are."""
        self._check_same_network(network, rows)
        return self._go_on(*copy.deepcopy((network, likelihood)), rows)

    def update(self, network: MLP, likelihood: Likelihood, rows: TrainingSet) -> Fitted:
        """Learn from new rows only: the posterior so far becomes the prior."""
        self._check_same_network(network, rows)
        prior = posterior_as_prior(network, torch.Generator().manual_seed(self.seed))
        return self._go_on(prior, likelihood_as_prior(likelihood), rows)

    def _check_same_network(self, network: MLP, rows: TrainingSet) -> None:
        """Refuse to train a network further that is no longer the one that the method and the rows ask for."""
        any_choice = [self.method.search.example] * self.n_members
        check_same_network(network, self.make_network(rows.x.shape[-1], any_choice))

    def _go_on(self, network: MLP, likelihood: Likelihood, rows: TrainingSet) -> Fitted:
        whole, [state] = self._run(network, likelihood, [rows], torch.Generator().manual_seed(self.seed))
        return _loaded(whole, state)

    def make_network(self, n_inputs: int, choices: Sequence[Choice]) -> MLP:
        """An untrained network, a replica for each choice."""
        n_outputs = self.method.likelihood.n_network_outputs(self.targets.n_targets)
        return self.method.network(n_inputs, n_outputs, choices)

    def held_out_log_probs(
        self, network: MLP, likelihood: Likelihood, held_out: list[TrainingSet], n_draws: int
    ) -> list[Array]:
        """log p(y) in standard units of every held-out row, for the replicas of each set."""
        functions = self.method.evaluate(network, stack(held_out, self.n_members)[0], n_draws, self.seed)
        return self.targets.log_probs(likelihood, functions, [rows.y for rows in held_out])

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
            best = BestSoFar(
                network,
                likelihood,
                held_out,
                lambda: self.held_out_log_probs(network, likelihood, held_out, VALIDATION_DRAWS),
                self.early_stopping,
            )
            callbacks.append(best)
        x, y, weight, n_rows = stack(train_sets, self.n_members)
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
        """The networks of one training set, as a fit of their own."""
        network = self.make_network(rows.x.shape[-1], choices)
        units = np.repeat([rows.unit], len(choices), axis=0)
        likelihood = self.method.likelihood.make(self.targets.n_targets, 1, units, choices)
        for part, module in zip(state, (network, likelihood), strict=True):
            _take_replicas(part, module, members)
        return Fitted(network, likelihood, whole.history, whole.n_epochs, choices)


def _loaded(fitted: Fitted, state: State) -> Fitted:
    fitted.network.load_state_dict(state[0])
    fitted.likelihood.load_state_dict(state[1])
    return fitted


def _take_replicas(whole: dict[str, Tensor], part: nn.Module, members: slice) -> None:
    """Copy the chosen replicas' state; what replicas share is copied as it is."""
    target = part.state_dict()
    part.load_state_dict(
        {name: value if value.shape == target[name].shape else value[members] for name, value in whole.items()}
    )

"""Fits networks by the lower bound: all members of all training sets train as one batched network.

A fitted network can train further, or learn online: the posterior so far becomes the prior of rows to come.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vmg.likelihoods import GaussianLikelihood, HeteroscedasticLikelihood, Likelihood
from vmg.nn.bayesian import BayesianLinear, use_generator
from vmg.nn.matrix_gaussian import MatrixGaussianLinear
from vmg.nn.mlp import MLP
from vmg.priors import FixedPrior
from vmg.training import Callback, History, Progress, train
from vmg.variational.method import STANDARD, Budget, Choice, Method
from vmg.variational.rows import Targets, TrainingSet, hold_out, stack

__all__ = ["BestSoFar", "EarlyStopping", "Fitted", "Fitter", "State", "posterior_as_prior", "separate"]

Array = NDArray[np.float64]

State = tuple[dict[str, Tensor], dict[str, Tensor]]
"""``state_dict`` of a network and of its likelihood."""

VALIDATION_DRAWS = 32  # posterior draws behind one check of early stopping
PRIOR_DRAWS = 256  # weight draws behind the moments of a posterior; their standard deviations are then known to 4 %
REPORTS = 50  # of a whole run


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
        """Refuse to train further where layers differ; an online update leaves no pseudo-data, whatever is asked."""
        asked = self.make_network(rows.x.shape[-1], [self.method.search.example] * self.n_members)
        before, now = _layer_sizes(network), _layer_sizes(asked)
        if before != now:
            raise ValueError(
                "warm_start and partial_fit go on with the layers of the last fit, (inputs, outputs, members) "
                f"{before}; parameters and data now ask for {now}"
            )
        updated = any(isinstance(module, FixedPrior) for module in network.modules())
        if not updated and _shapes(network) != _shapes(asked):
            raise ValueError(
                "warm_start and partial_fit go on with the network of the last fit; n_pseudo, pseudo_noise, zero_mean, "
                "row_covariance and column_covariance must be those of that fit"
            )

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


# -- training further ---------------------------------------------------------------------------------------------


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


def likelihood_as_prior(likelihood: Likelihood) -> Likelihood:
    """A likelihood whose prior is the present one's posterior; one without a posterior stays as it is."""
    if not isinstance(likelihood, GaussianLikelihood):
        return likelihood
    updated = likelihood.posterior_as_prior()
    # count updates anew: the first are large again, so that few steps are enough for the new rows to be counted
    count = updated.get_buffer("n_updates")
    if isinstance(updated, HeteroscedasticLikelihood):
        updated.get_buffer("fade").sub_(count)
    count.zero_()
    return updated


def _moments_matched(layer: nn.Module, generator: torch.Generator) -> MatrixGaussianLinear:
    assert isinstance(layer, MatrixGaussianLinear)
    weights = layer.sample_weight((PRIOR_DRAWS,))
    loc = weights.mean(0)
    row_scale, column_scale = separate(weights.var(0))
    matched = MatrixGaussianLinear(
        layer.in_features,
        layer.out_features,
        layer.has_bias,
        prior=FixedPrior(loc, row_scale, column_scale),
        batch_shape=layer.batch_shape,
    ).to(loc)
    assert matched.loc is not None
    matched.loc.copy_(loc)
    matched.row.reset(row_scale.log(), generator)
    matched.column.reset(column_scale.log(), generator)
    return matched


def separate(variance: Tensor) -> tuple[Tensor, Tensor]:
    """Scales r, c with r_i² c_j² closest to variance [..., R, C] in least squares of logarithms."""
    log_variance = variance.clamp_min(torch.finfo(variance.dtype).tiny).log()
    level = log_variance.mean((-2, -1), keepdim=True)
    row = log_variance.mean(-1) - 0.5 * level.squeeze(-1)
    column = log_variance.mean(-2) - 0.5 * level.squeeze(-2)
    return (0.5 * row).exp(), (0.5 * column).exp()


def _layer_sizes(network: MLP) -> list[tuple[int, ...]]:
    layers = [layer for layer in network.layers if isinstance(layer, BayesianLinear)]
    return [(layer.in_features, layer.out_features, *layer.batch_shape) for layer in layers]


def _shapes(network: MLP) -> dict[str, torch.Size]:
    """Shapes of what is trained, the priors' own parameters aside."""
    return {name: p.shape for name, p in network.named_parameters() if "prior" not in name}

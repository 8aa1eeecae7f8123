"""Fits the paper's model, and other networks, by the variational objective; several fits train as one batched network.

A :class:`Method` says what is fitted: networks, likelihoods, and a search for what the objective cannot choose. Of the
paper's model that is the limit on the noise of its pseudo-data. No single limit suits every table: little noise lets
pseudo-points carry much detail, which nearly noise-free targets need and noisy ones turn into overfitting. The KL is
known up to a constant that depends on the limit, so held-out rows choose it.

A fitted network can learn online: the posterior so far becomes the prior of rows to come.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vmg.fit.design import threads_for
from vmg.likelihoods import CategoricalLikelihood, GaussianLikelihood, HeteroscedasticLikelihood, Likelihood
from vmg.nn.bayesian import use_generator
from vmg.nn.matrix_gaussian import MatrixGaussianLinear
from vmg.nn.mlp import MLP, Activation
from vmg.prediction import ClassPrediction, Prediction, draw_functions
from vmg.priors import FixedPrior, GammaPrior, Prior
from vmg.training import Callback, History, Progress, Schedule, cosine, train

__all__ = ["Budget", "EarlyStopping", "Fitted", "Fitter", "GaussianNoise", "Method", "TrainingSet", "search_noise"]

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
    inside, outside = [], []
    for rows in sets:
        n = len(rows.x)
        n_held = min(max(1, round(fraction * n)), n - 1)
        if n_held < 1:
            raise ValueError(f"early_stopping needs at least 2 rows to hold one out; got {n}")
        held, kept = torch.randperm(n, generator=generator).split([n_held, n - n_held])
        inside.append(rows.take(kept))
        outside.append(rows.take(held))
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


def draw_outputs(network: MLP, x: Tensor, n_draws: int, seed: int) -> Tensor:
    """Posterior draws [S, replicas, N, C] of the outputs at x, with as many threads as that work is worth."""
    with _threads(network, n_draws * x.shape[-2]):
        return draw_functions(network, x, n_draws, seed)


def _threads(network: MLP, n_rows: int) -> AbstractContextManager[None]:
    """Threads for a network at some rows, about a multiply-add for each row and parameter."""
    return threads_for(float(n_rows * sum(p.numel() for p in network.parameters())))


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

QUICK = Budget(2_000, 10_000, batches=64)
"""The budget of a single network with pseudo-data (lab/vmg_time.py)."""

QUICK_NUMBERS = Budget(2_000, 10_000, batches=3)
"""The same for numbers: batches that are eight times as large cost little more. Classes overfit with them."""

LONG = Budget(30_000, 40_000, batches=128, trial_batches=128)
"""The budget of ensembles of regressors; see docs/table1.md."""


# -- networks and likelihoods -----------------------------------------------------------------------------------------

NOISE_FADE = (0.3, 0.6)
"""Share of training between which input-dependent noise is faded in: the mean settles first."""

NOISE_BALANCE = 0.5
"""How far the mean is fitted as under constant noise: see :class:`~vmg.likelihoods.HeteroscedasticLikelihood`."""


def per_replica(values: Sequence[float]) -> float | torch.Tensor:
    """Numbers of all replicas as a layer takes them: one where all are the same, else a tensor."""
    if len(set(values)) == 1:
        return float(values[0])
    return torch.as_tensor(values, dtype=torch.get_default_dtype(), device="cpu")  # also while shapes alone are made


def matrix_gaussian_networks(
    hidden: tuple[int, ...],
    activation: str | Activation = "relu",
    *,
    make_prior: Callable[[], Prior] = GammaPrior,
    initial_scale: float = math.exp(-9),
    **options: Any,
) -> NetworkFactory:
    """Networks of the paper's layers; a choice is the limit ``max_noise`` on the noise √α of pseudo-points.

    Args:
        hidden, activation: of :class:`~vmg.nn.MLP`.
        make_prior: gives each network its prior.
        initial_scale: of the weights at the start; chosen by the bound that a given number of steps reaches.
        options: all others of :class:`~vmg.nn.MLP` and :class:`~vmg.nn.MatrixGaussianLinear`.
    """
    options |= {"activation": activation, "initial_scale": initial_scale}

    def make(n_inputs: int, n_outputs: int, choices: Sequence[Choice]) -> MLP:
        own: dict[str, Any] = {"max_noise": per_replica(choices), "batch_shape": (len(choices),)}
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            # the paper itself uses more pseudo-points than inputs on narrow tables
            warnings.filterwarnings("ignore", message="n_pseudo should be <")
            return MLP(n_inputs, hidden, n_outputs, prior=make_prior(), **own, **options)

    return make


def categorical(n_steps: int, units: Array, choices: Sequence[Choice]) -> Likelihood:
    """Classes, one output of the network each."""
    return CategoricalLikelihood()


@dataclass(frozen=True)
class GaussianNoise:
    """Gaussian noise of learned precision: the same everywhere, or a function of the input."""

    by_input: bool = False
    prior: tuple[float, float] = (1.0, 1e-3)
    """Gamma(concentration, rate) of the precision in standardised units."""

    def __post_init__(self) -> None:
        if np.shape(self.prior) != (2,):
            raise ValueError(f"noise_prior must be (concentration, rate); got {self.prior!r}")

    def __call__(self, n_steps: int, units: Array, choices: Sequence[Choice]) -> Likelihood:
        (n_replicas, n_targets), (concentration, rate) = units.shape, (float(value) for value in self.prior)
        options: dict[str, Any] = {"concentration": concentration, "rate": rate, "batch_shape": (n_replicas,)}
        likelihood = GaussianLikelihood(n_targets, **options)
        if self.by_input:
            start, stop = (int(share * n_steps) for share in NOISE_FADE)
            options |= {"balance": NOISE_BALANCE, "fade": (start, max(stop, start + 1))}
            likelihood = HeteroscedasticLikelihood(n_targets, **options)
        # Start at noise of unit precision, which is a standardised target's own. The prior's mean, 1000, would make
        # the first gradient so large that Adam, which remembers squares for a thousand steps, hardly moves after it.
        with torch.no_grad():
            likelihood.log_rate.copy_(likelihood.log_concentration)
        return likelihood


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

    Each set is judged by itself, so that none learns anything from another's rows.
    """

    def __init__(self, fitter: Fitter, modules: tuple[MLP, Likelihood], held_out: list[TrainingSet]) -> None:
        self._fitter, self._modules, self._held_out = fitter, modules, held_out
        self._waited = [0] * len(held_out)
        self.scores = [-math.inf] * len(held_out)
        self.states: list[State | None] = [None] * len(held_out)

    def __call__(self, progress: Progress) -> bool:
        rule, now = self._fitter.early_stopping or EarlyStopping(), None
        each = self._fitter.held_out_log_probs(*self._modules, self._held_out, VALIDATION_DRAWS)
        for k, (rows, log_probs) in enumerate(zip(self._held_out, each, strict=True)):
            if self._waited[k] >= rule.patience:
                continue
            score = float(np.average(log_probs, weights=rows.weight))
            self._waited[k] += 1
            if score > self.scores[k] + rule.tol:
                now = now or copy.deepcopy((self._modules[0].state_dict(), self._modules[1].state_dict()))
                self.scores[k], self.states[k], self._waited[k] = score, now, 0
        return min(self._waited) >= rule.patience


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
            best = BestSoFar(self, (network, likelihood), held_out)
            callbacks.append(best)
        x, y, weight, n_rows = stack(train_sets, self.n_members)
        with _threads(network, batch_size):
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


# -- what is searched -------------------------------------------------------------------------------------------------


def given(choice: Choice = None) -> Search:
    """No search: the same choice for all."""
    return lambda fitter, sets: [[choice] * fitter.n_members for _ in sets]


HELD_OUT = 0.2  # of the rows in each trial


class Trials(NamedTuple):
    """Networks trained on a part of each set, and the rows that they have not seen."""

    fitter: Fitter
    trained: Fitted
    held_out: list[TrainingSet]  # for each candidate, of each set, ``repeats`` times over
    repeats: int


def run_trials(
    fitter: Fitter, sets: list[TrainingSet], candidates: Sequence[Choice], *, enough: int, most_steps: int
) -> Trials:
    """Train every candidate on a random part of each set, all as one batched network.

    Sets of fewer than ``enough`` rows are split up to three times.
    """
    repeats = int(np.clip(round(enough / min(len(rows.x) for rows in sets)), 1, 3))
    generator = torch.Generator().manual_seed(fitter.seed)
    inside, outside = hold_out([rows for rows in sets for _ in range(repeats)], HELD_OUT, generator)
    budget = replace(fitter.budget, batches=fitter.budget.trial_batches)
    trial = replace(fitter, n_members=1, early_stopping=None, callbacks=(), most_steps=most_steps, budget=budget)
    trained, _ = trial.train(inside * len(candidates), [[candidate] for candidate in candidates for _ in inside])
    return Trials(trial, trained, outside * len(candidates), repeats)


CANDIDATES = (0.01, 0.03, 0.08, 0.2, 0.5)
"""Limits on √α that are tried, about evenly spaced in their logarithm; the paper's are √0.005 and √0.05 for tables."""

SHARPER = (0.1, 0.3, 1.0)
"""Shares of the smallest limit, tried where that one is chosen throughout and rows are many, down to ``SHARPEST``.
Targets nearly free of noise want it: on validation rows of naval 0.001 has 2.92 nats a row and 0.01 has 1.38. Small
tables do not, nor would short trials tell: on yacht 0.001 ends at 0.38 and 0.03 at 2.36 (lab/defaults.py)."""
SHARPEST = 1e-4

FEW = 20
"""Below this many rows the largest limit is taken untried."""

ENOUGH = 2_000
"""Rows from which one trial says enough; fewer are split up to three times."""

TRIAL_STEPS = 1_000
"""A trial's steps, at most. On eleven development tables trials of 2,000 steps choose the same limits."""

DRAWS = 64  # posterior draws behind a trial's score


def search_noise(
    fitter: Fitter, sets: list[TrainingSet], candidates: tuple[float, ...] = CANDIDATES
) -> list[list[float]]:
    """Choose the limit on √α for each training set, or one for each member of an ensemble.

    Small sets are split several times. All trials, of every candidate, set and repetition, train as one batched
    network. Trials of a set see its own rows alone; how many there are and how long they train follows the smallest.
    """
    chosen = [[CANDIDATES[-1]] * fitter.n_members for _ in sets]
    tried = [k for k, rows in enumerate(sets) if len(rows.x) >= FEW]
    if not tried:
        return chosen
    large = [sets[k] for k in tried]
    trials = run_trials(fitter, large, candidates, enough=ENOUGH, most_steps=TRIAL_STEPS)
    modules = trials.trained.network, trials.trained.likelihood
    log_probs = trials.fitter.held_out_log_probs(*modules, trials.held_out, DRAWS)
    n_trials = len(large) * trials.repeats  # of each candidate
    for place, k in enumerate(tried):
        own = slice(place * trials.repeats, (place + 1) * trials.repeats)
        found = np.stack(
            [np.concatenate(log_probs[c * n_trials : (c + 1) * n_trials][own]) for c in range(len(candidates))]
        )
        weights = [rows.weight.numpy() for rows in trials.held_out[own] if rows.weight is not None]
        weight = np.concatenate(weights) if weights else None
        one = fitter.n_members == 1
        best = [choose_one(found, weight)] if one else choose_members(found, fitter.n_members, weight)
        chosen[k] = [candidates[c] for c in best]
    sharp = [k for k in tried if set(chosen[k]) == {candidates[0]}]
    if sharp and min(len(rows.x) for rows in large) >= ENOUGH and candidates[0] > SHARPEST:
        below = search_noise(fitter, [sets[k] for k in sharp], tuple(part * candidates[0] for part in SHARPER))
        for k, limits in zip(sharp, below, strict=True):
            chosen[k] = limits
    return chosen


def choose_one(log_probs: Array, weight: Array | None = None) -> int:
    """The last candidate that is not clearly worse than the best: by no more than one standard error.

    ``log_probs`` [candidates, N] are log p(y) of every held-out row under candidates in order of caution. The rule
    (Breiman et al. 1984, §3.4.3, with the error of the difference, row by row) leans to the cautious side, because an
    overconfident network cannot be mended by others, as in an ensemble, and because trials are shorter than the
    training that follows, in which sharp candidates overfit more.
    """
    best = np.average(log_probs, axis=1, weights=weight).argmax()
    deficit = log_probs[best] - log_probs
    mean = np.average(deficit, axis=1, weights=weight)
    spread = np.average((deficit - mean[:, None]) ** 2, axis=1, weights=weight)
    error = np.sqrt(spread / log_probs.shape[1])
    return int(np.flatnonzero(mean <= error)[-1])


def choose_members(log_probs: Array, n_members: int, weight: Array | None = None) -> NDArray[np.int64]:
    """The candidates, ascending, one for each member, whose equal mixture explains held-out rows well.

    ``log_probs`` are those of :func:`choose_one`. Members are added one by one, each time the candidate that makes the
    mixture so far the most likely (greedy selection with replacement, Caruana et al. 2004). Members with different
    limits err differently: small ones predict better, large ones know their limits, and the mixture has some of both.
    """
    members: list[int] = []
    total = np.full(log_probs.shape[1], -np.inf)  # log of the sum of the members' densities
    for _ in range(n_members):
        mixtures = np.logaddexp(total, log_probs)
        members.append(int(np.average(mixtures, axis=1, weights=weight).argmax()))
        total = mixtures[members[-1]]
    return np.sort(members)


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

"""Predictions: posterior draws of the network's output turned into distributions of the target."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy import special
from torch import Tensor, nn

from vmg.nn.bayesian import BayesianLinear, use_generator
from vmg.nn.draws import evaluating, fixed_draw
from vmg.nn.mlp import MLP

__all__ = ["ClassPrediction", "Prediction", "draw_functions", "row_pieces", "sample_outputs"]

Array = NDArray[np.float64]

NUMBERS_AT_ONCE = 2**19
"""Numbers of a layer's output, all samples together: more rows come in chunks, which fit into the processor's cache."""

ROWS_AT_ONCE = 5_000
"""Whose draws are kept together."""

WEIGHTS_AT_ONCE = 2**24
"""Weights of drawn networks: more samples come in groups, so that memory does not grow with their number."""


@torch.no_grad()
def sample_outputs(network: nn.Module, x: Tensor, n_samples: int, *, batch_shape: Sequence[int] = ()) -> Tensor:
    """Posterior draws of the output at x: [n_samples, *batch_shape, N, C].

    A sample is one set of weights. For an :class:`~vmg.nn.MLP` all samples of a chunk of rows come from one vectorised
    pass; any other module is called once a sample and chunk of rows, in eval mode. Its rows are dimension 0, or the
    one after those of replicas.
    """
    if n_samples < 1:
        raise ValueError(f"n_samples must be at least 1; got {n_samples}")
    if isinstance(network, MLP):
        return _evaluate_functions(network, x, n_samples)
    replicas = int(np.prod(batch_shape)) if batch_shape else 1
    chunk = max(1, NUMBERS_AT_ONCE // replicas)
    n_batch = len(batch_shape)
    own = n_batch > 0 and x.dim() >= n_batch + 2 and x.shape[:n_batch] == tuple(batch_shape)
    outputs = []
    with evaluating(network):
        for _ in range(n_samples):
            with fixed_draw(network):
                pieces = [network(rows) for rows in x.split(chunk, dim=n_batch if own else 0)]
            outputs.append(torch.cat(pieces, dim=n_batch))
    return torch.stack(outputs)


@torch.no_grad()
def draw_functions(network: MLP, x: Tensor, n_draws: int, seed: int) -> Tensor:
    """Whole functions drawn from the posterior, evaluated at x in double precision: [n_draws, *batch_shape, N, C].

    One draw is one set of weights and depends on ``seed`` alone, so a row gets the same values whatever other rows
    come with it. ``network`` itself stays as it is.
    """
    exact = copy.deepcopy(network).double()
    use_generator(exact, torch.Generator().manual_seed(seed))
    return _evaluate_functions(exact, x.double(), n_draws)


def _evaluate_functions(network: MLP, x: Tensor, n_draws: int) -> Tensor:
    layers = [layer for layer in network.layers if isinstance(layer, BayesianLinear)]
    replicas = layers[0].batch_shape.numel()
    n_weights = replicas * sum(layer.n_rows * layer.out_features for layer in layers)
    widest = max(layer.out_features for layer in layers)
    group = min(n_draws, max(1, WEIGHTS_AT_ONCE // n_weights))
    chunk = max(1, NUMBERS_AT_ONCE // (group * replicas * widest))
    outputs = []
    for start in range(0, n_draws, group):
        functions = network.sample_functions(min(group, n_draws - start))
        outputs.append(torch.cat([functions(rows) for rows in x.split(chunk, dim=-2)], dim=-2))
    return torch.cat(outputs)


def row_pieces(n_rows: int) -> Iterator[slice]:
    """All rows in pieces whose draws fit in memory, however many rows there are; one piece at least."""
    for start in range(0, max(n_rows, 1), ROWS_AT_ONCE):
        yield slice(start, start + ROWS_AT_ONCE)


def _targets(y: ArrayLike, n_rows: int, n_outputs: int) -> Array:
    """Targets as [N, C]."""
    values = np.asarray(y, dtype=np.float64)
    if values.shape not in ((n_rows,), (n_rows, n_outputs)) or values.size != n_rows * n_outputs:
        raise ValueError(f"y must have {n_rows} rows and {n_outputs} outputs; got shape {values.shape}")
    return values.reshape(n_rows, n_outputs)


@dataclass(frozen=True)
class Prediction:
    """The predictive distribution of N rows: for each an equal mixture of S Student-t (or Gaussian) components.

    All numbers are in the target's own units. Where there is one output, results are [N]; otherwise [N, C].

    Parameters
    ----------
    loc : array [S, N, C]
        Centres: posterior draws of the network.
    scale : array broadcastable to loc
        Scale of the noise around each centre.
    df : array broadcastable to loc
        Degrees of freedom; infinite for Gaussian noise.
    squeeze : bool
        Give [N] instead of [N, 1].
    """

    loc: Array
    scale: Array
    df: Array
    squeeze: bool = True

    def _shape(self, values: Array) -> Array:
        return values[..., 0] if self.squeeze and values.shape[-1] == 1 else values

    @property
    def n_rows(self) -> int:
        return self.loc.shape[1]

    @property
    def n_outputs(self) -> int:
        return self.loc.shape[2]

    @cached_property
    def _noise_variance(self) -> Array:
        """Variance of each component, [S or 1, N or 1, C]; infinite for df <= 2."""
        df = np.broadcast_to(self.df, np.broadcast_shapes(self.df.shape, self.scale.shape))
        with np.errstate(invalid="ignore", divide="ignore"):
            factor = np.where(np.isinf(df), 1.0, np.where(df > 2, df / (df - 2), np.inf))
        return factor * self.scale**2

    @property
    def mean(self) -> Array:
        """Mean of the target."""
        return self._shape(self.loc.mean(0))

    @property
    def aleatoric_std(self) -> Array:
        """The noise's share of the standard deviation: what more data would not remove."""
        variance = np.broadcast_to(self._noise_variance, self.loc.shape).mean(0)
        return self._shape(np.sqrt(variance))

    @property
    def epistemic_std(self) -> Array:
        """Ignorance's share: how far posterior draws of the network disagree."""
        return self._shape(self.loc.std(0))

    @property
    def std(self) -> Array:
        """Standard deviation of the target; std² = aleatoric_std² + epistemic_std²."""
        return np.sqrt(self.aleatoric_std**2 + self.epistemic_std**2)

    def row_covariance(self) -> Array:
        """Covariance between rows, noise on the diagonal: [N, N], or [N, N, C]."""
        centred = self.loc - self.loc.mean(0)
        between = np.einsum("snc,smc->nmc", centred, centred) / len(centred)
        rows = np.arange(self.n_rows)
        between[rows, rows] += np.broadcast_to(self._noise_variance, self.loc.shape).mean(0)
        return self._shape(between)

    def covariance(self) -> Array:
        """Covariance between the outputs of each row, [N, C, C]."""
        centred = self.loc - self.loc.mean(0)
        between = np.einsum("snc,snd->ncd", centred, centred) / len(centred)
        outputs = np.arange(self.n_outputs)
        between[:, outputs, outputs] += np.broadcast_to(self._noise_variance, self.loc.shape).mean(0)
        return between

    def log_prob(self, y: ArrayLike) -> Array:
        """log p(y) of each row [N], all outputs together: log of the mean over draws of Π_c p(y_c | f_c)."""
        target = _targets(y, self.n_rows, self.n_outputs)
        z = (target - self.loc) / self.scale
        joint = (_component_logpdf(z, self.df) - np.log(self.scale)).sum(-1)  # [S, N]
        return special.logsumexp(joint, axis=0) - np.log(len(self.loc))

    def cdf(self, y: ArrayLike) -> Array:
        """P(target <= y) of each row and output."""
        return self._shape(self._cdf(_targets(y, self.n_rows, self.n_outputs)))

    def _cdf(self, target: Array) -> Array:
        return _component_cdf((target - self.loc) / self.scale, self.df).mean(0)

    def quantile(self, q: ArrayLike) -> Array:
        """The value that the target stays below with probability q: [N] (or [N, C]), or [Q, N, ...] for several q."""
        levels = np.asarray(q, dtype=np.float64)
        if not ((levels > 0) & (levels < 1)).all():
            raise ValueError(f"q must be inside (0, 1); got {levels}")
        found = np.stack([self._quantile(float(level)) for level in levels.reshape(-1)])
        return self._shape(found.reshape(*levels.shape, self.n_rows, self.n_outputs))

    def interval_at(self, coverage: Array) -> Array:
        """The central interval with a coverage of its own for each output [C] (or row, [N, C]): [N, 2], or [N, C, 2].

        A coverage of 1 asks for everything, (−∞, ∞).
        """
        tail = (1 - np.asarray(coverage, dtype=np.float64)) / 2
        if not ((tail >= 0) & (tail <= 0.5)).all():
            raise ValueError(f"coverage must be from 0 to 1; got {coverage}")
        everything = tail == 0
        inner = np.where(everything, 0.25, tail)
        # 1 − tail would round to 1 for a small tail: the upper end is the lower one of the mirrored distribution
        mirrored = replace(self, loc=-self.loc)
        low, high = (np.where(everything, np.inf, -side._quantile(inner)) for side in (self, mirrored))
        return np.moveaxis(self._shape(np.stack([-low, high])), 0, -1)

    def _quantile(self, level: float | Array) -> Array:
        """Newton's method on the cdf, kept inside a bracket; a row that has converged costs no more cdfs."""
        loc, scale, df, level = self.loc, self.scale, self.df, np.atleast_2d(level)
        # a mixture's quantile lies between the smallest and the largest of its components' quantiles
        component = loc + scale * _component_quantile(level, df)
        low, high = component.min(0), component.max(0)
        spread = np.sqrt(np.broadcast_to(scale**2, loc.shape).mean(0) + loc.var(0))
        guess = np.clip(loc.mean(0) + spread * special.ndtri(level), low, high)
        moved = high - low
        found, todo = guess.copy(), np.arange(self.n_rows)
        for _ in range(100):
            z = (guess - loc) / scale
            gap = _component_cdf(z, df).mean(0) - level
            density = (np.exp(_component_logpdf(z, df)) / scale).mean(0)
            low, high = np.where(gap < 0, guess, low), np.where(gap < 0, high, guess)
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                newton = guess - gap / density
                good = (newton >= low) & (newton <= high) & (np.abs(newton - guess) < 0.5 * moved)
            better = np.where(good, newton, 0.5 * (low + high))
            guess, moved = better, np.abs(better - guess)
            found[todo] = guess
            rest = (moved > 1e-9 * scale.min(0) + 1e-15 * np.abs(guess)).any(-1)
            if not rest.any():
                break
            todo, low, high, guess, moved = (a[rest] for a in (todo, low, high, guess, moved))
            loc, scale, df = (a if a.shape[1] == 1 else a[:, rest] for a in (loc, scale, df))
            level = level if len(level) == 1 else level[rest]
        return found

    def interval(self, coverage: float = 0.9) -> Array:
        """The central interval that holds the target with probability ``coverage``: [N, 2], or [N, C, 2]."""
        if not 0 < coverage < 1:
            raise ValueError(f"coverage must be inside (0, 1); got {coverage}")
        return self.interval_at(np.asarray(coverage))

    def sample(self, n_samples: int, random_state: int | np.random.Generator | None = None) -> Array:
        """Draws of the target, [n_samples, N] or [n_samples, N, C].

        All rows and outputs of a sample share one draw of the network and have noise of their own.
        """
        rng = np.random.default_rng(random_state)
        which = rng.integers(len(self.loc), size=n_samples)
        loc, scale, df = (np.broadcast_to(a, self.loc.shape)[which] for a in (self.loc, self.scale, self.df))
        noise = rng.standard_normal(loc.shape)
        finite = np.isfinite(df)
        spread = np.ones_like(loc)
        spread[finite] = np.sqrt(rng.chisquare(df[finite]) / df[finite])
        return self._shape(loc + scale * noise / spread)


def _component_logpdf(z: Array, df: Array) -> Array:
    gaussian = -0.5 * z**2 - 0.5 * np.log(2 * np.pi)
    if np.isinf(df).all():
        return gaussian
    finite = np.where(np.isinf(df), 1.0, df)
    normaliser = special.gammaln((finite + 1) / 2) - special.gammaln(finite / 2) - 0.5 * np.log(finite * np.pi)
    student = normaliser - 0.5 * (finite + 1) * np.log1p(z**2 / finite)
    return np.where(np.isinf(df), gaussian, student)


def _component_cdf(z: Array, df: Array) -> Array:
    if np.isinf(df).all():
        return special.ndtr(z)
    return np.where(np.isinf(df), special.ndtr(z), special.stdtr(np.where(np.isinf(df), 1.0, df), z))


def _component_quantile(level: float | Array, df: Array) -> Array:
    return np.where(np.isinf(df), special.ndtri(level), special.stdtrit(np.where(np.isinf(df), 1.0, df), level))


@dataclass(frozen=True)
class ClassPrediction:
    """Class probabilities of N rows under S posterior draws.

    Parameters
    ----------
    samples : array [S, N, K]
        Probabilities of each draw.
    classes : array [K]
        The classes, in order.
    """

    samples: Array
    classes: NDArray[Any]

    @cached_property
    def probabilities(self) -> Array:
        """Mean over draws, [N, K]; rows sum to one."""
        mean = self.samples.mean(0)
        return mean / mean.sum(-1, keepdims=True)

    @property
    def label(self) -> NDArray[Any]:
        """The most probable class."""
        return self.classes[self.probabilities.argmax(-1)]

    @property
    def predictive_entropy(self) -> Array:
        """All uncertainty about the class, in nats: the entropy of the mean."""
        return special.entr(self.probabilities).sum(-1)

    @property
    def expected_entropy(self) -> Array:
        """Its aleatoric part: the mean entropy of the draws."""
        return special.entr(self.samples).sum(-1).mean(0)

    @property
    def mutual_information(self) -> Array:
        """Its epistemic part: how much knowing the weights would tell about the class."""
        return np.maximum(self.predictive_entropy - self.expected_entropy, 0.0)

    def log_prob(self, y: ArrayLike) -> Array:
        """log p(y) of each row."""
        labels = np.asarray(y)
        if labels.shape != self.samples.shape[1:2]:
            raise ValueError(
                f"y must have one label for each of {self.samples.shape[1]} rows; got shape {labels.shape}"
            )
        position = np.searchsorted(self.classes, labels)
        known = position < len(self.classes)
        known[known] = self.classes[position[known]] == labels[known]
        if not known.all():
            raise ValueError(f"y must be among the classes {self.classes}; got {np.unique(labels[~known])}")
        chosen = self.probabilities[np.arange(len(labels)), position]
        return np.log(np.maximum(chosen, np.finfo(np.float64).tiny))

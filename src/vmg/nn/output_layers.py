"""Output layers that are conditioned on rows instead of trained.

With Gaussian noise the layer is integrated out exactly, and updates with new rows are exact. A softmax layer has matrix
Gaussian weights: at the optimum of its variational bound, or around weights that were trained.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from vmg.math.evidence import (
    LinearPosterior,
    NoisePrior,
    RowStatistics,
    condition,
    group_precision,
    log_evidence,
    log_evidence_of_statistics,
    row_statistics,
)
from vmg.math.linalg import at_least_float32, randn
from vmg.math.softmax_evidence import (
    MOST_CLASSES,
    ClassRows,
    ClassWeights,
    Curvature,
    class_posterior,
    expected_curvature,
    expected_log_likelihood,
)

__all__ = ["GaussianOutput", "SoftmaxOutput"]

PRECISION_STEPS = 60  # of L-BFGS over a few log precisions: far more than it takes
MEAN_STEPS = 25  # of L-BFGS in each round
PRECISION_ROUNDS = 10  # in each round
LOG_RANGE = 7.0  # of a log precision: a group's part of the function has a deviation from 0.03 to 33 units
MOST_ROUNDS = 100  # of mean, curvature and precisions in turn
CHEAP = 2**27  # rows × weights × pairs of draws that means over the posterior are taken with; at least two pairs
DAMPING = 1e-3  # of the covariance around trained weights, in units of the mean precision that rows give a weight
WIDEST = 4.0  # of the factors of this covariance
COST = 0.0075  # nats that rows of the fit may lose, on average, to the spread of weights around the trained ones


class _Output(nn.Module):
    """Groups of features of both kinds, and buffers that stay in double precision in a model of any other."""

    log_precision: nn.Parameter  # of each group, [*batch_shape, G]
    group_sizes: tuple[int, ...]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> _Output:
        before = {name: value for name, value in self._buffers.items() if value is not None}
        super()._apply(fn, recurse)
        for name, value in before.items():
            moved = self._buffers[name]
            if moved is not None and moved.dtype is not value.dtype:
                self._buffers[name] = value.to(moved.device)
        return self

    def prior_precision(self) -> Tensor:
        """a [*batch_shape, D] of the prior; with Gaussian noise in units of the noise's precision."""
        return group_precision(self.log_precision, self.group_sizes)

    def _unit_precision(self, squares: Tensor) -> Tensor:
        """log a at which each group's part of the function has the variance one, for mean squared features [..., D]."""
        sums = [part.sum(-1) for part in squares.split(list(self.group_sizes), -1)]
        return torch.stack(sums, -1).clamp_min(1e-30).log()


def _zeros(*shape: int) -> nn.Buffer:
    return nn.Buffer(torch.zeros(shape, dtype=torch.float64))


def _add(sums: Sequence[Tensor], new: Sequence[Tensor]) -> None:
    for buffer, part in zip(sums, new, strict=True):
        buffer += part


class GaussianOutput(_Output):
    """y = Φ W + noise, with W and the noise's precision integrated out; Φ are features of rows.

    Args:
        group_sizes: consecutive features with a prior precision of their own.
        noise_prior: Gamma for each output, or with ``full=True`` a Wishart over the covariance of the outputs' noise.
        batch_shape: replicas: features are [*batch_shape, N, D].
        relative: take the noise prior's rate in units of the variance of the targets seen, whose unit then does not
            matter.
        bias: whether the last feature is always one.
    """

    inflation: Tensor | None

    def __init__(
        self,
        group_sizes: Sequence[int],
        n_outputs: int = 1,
        *,
        noise_prior: NoisePrior | None = None,
        batch_shape: Sequence[int] = (),
        relative: bool = False,
        bias: bool = False,
    ) -> None:
        super().__init__()
        self.group_sizes, self.n_outputs = tuple(group_sizes), n_outputs
        self.relative, self.bias = relative, bias
        self.noise_prior = noise_prior or NoisePrior()
        self.log_precision = nn.Parameter(torch.zeros(*batch_shape, len(self.group_sizes)))
        d, c = sum(self.group_sizes), n_outputs
        self.gram, self.moment = _zeros(*batch_shape, d, d), _zeros(*batch_shape, d, c)
        self.square, self.count = _zeros(*batch_shape, c, c), _zeros(*batch_shape)
        self.register_buffer("inflation", None)  # a factor of all variances [C], where rows held out may choose one

    def log_evidence(self, features: Tensor, y: Tensor, weight: Tensor | None = None) -> Tensor:
        """log p(y | Φ) [*batch_shape] of targets [N, C]: an objective for the features and the precisions."""
        y = self._targets(y)
        with torch.no_grad():
            prior = self._prior(_row_statistics(features, y, weight))
        return log_evidence(features, y, self.prior_precision(), weight=weight, prior=prior)

    # -- conditioning on rows -----------------------------------------------------------------------------------------

    @property
    def statistics(self) -> RowStatistics:
        """Sums over the rows that were seen."""
        return RowStatistics(self.gram, self.moment, self.square, self.count)

    def forget(self) -> None:
        """Go back to before any rows were seen."""
        for buffer in self.statistics:
            buffer.zero_()
        if self.inflation is not None:
            self.inflation = torch.ones_like(self.inflation)

    @torch.no_grad()
    def update(self, features: Tensor, y: Tensor, weight: Tensor | None = None) -> None:
        """Condition on more rows; the result is that of seeing all rows at once."""
        _add(self.statistics, _row_statistics(features, self._targets(y), weight))

    def start_precision(self) -> None:
        """Set the prior's precisions to where each group's part of the function varies as much as the noise."""
        with torch.no_grad():
            squares = self.gram.diagonal(dim1=-2, dim2=-1) / self.count.unsqueeze(-1)
            self.log_precision.copy_(self._unit_precision(squares))

    def learn_precision(self) -> None:
        """Choose the prior's precisions by the evidence of the rows that were seen."""
        self.start_precision()
        start, rows = self.log_precision.detach().double(), self.statistics
        prior = self._prior(rows)
        change = torch.zeros_like(start).requires_grad_()
        optimiser = torch.optim.LBFGS(
            [change], max_iter=PRECISION_STEPS, line_search_fn="strong_wolfe", tolerance_change=1e-8
        )

        def loss() -> Tensor:
            optimiser.zero_grad()
            precision = group_precision(start + change.clamp(-LOG_RANGE, LOG_RANGE), self.group_sizes)
            value = -log_evidence_of_statistics(rows, precision, prior).sum()
            value.backward()
            return value

        with torch.enable_grad():
            optimiser.step(loss)
        inside = change.detach().abs() < LOG_RANGE
        if change.grad is not None and (change.grad.abs()[inside] > 0.1).any():
            warnings.warn("the precisions of the head have not converged to the optimum of the evidence", stacklevel=3)
        with torch.no_grad():
            self.log_precision.copy_(start + change.clamp(-LOG_RANGE, LOG_RANGE))

    def _prior(self, rows: RowStatistics) -> NoisePrior:
        """The prior of the noise; where it is relative, its rate is in units of the variance of these rows' targets.

        That is about their mean where the last feature is one, so that its moment is their sum.
        """
        if not self.relative:
            return self.noise_prior
        n_rows = rows.n_rows.clamp_min(1e-300).unsqueeze(-1)
        square = rows.square.diagonal(dim1=-2, dim2=-1) / n_rows
        variance = square - (rows.moment[..., -1, :] / n_rows).square() if self.bias else square
        unit = torch.where(variance > 1e-12 * square, variance, torch.where(square > 0, square, 1.0))
        return replace(self.noise_prior, rate=self.noise_prior.rate * unit)

    def posterior(self) -> LinearPosterior:
        """Posterior of the output weights and of the noise given the rows seen so far, in double precision."""
        rows = self.statistics
        posterior = condition(rows, self.prior_precision().detach().double(), self._prior(rows))
        if self.inflation is None:
            return posterior
        wide = self.inflation.sqrt()
        factor = wide.unsqueeze(-1) * wide if posterior.full else self.inflation
        return replace(posterior, scatter=posterior.scatter * factor)

    @torch.no_grad()
    def calibrate(self, features: Tensor, y: Tensor, *, only_widen: bool) -> None:
        """Scale all variances by what rows that were not seen ask for, where that is more than a standard error."""
        mean, variance, noise = self.functions(features)
        ratio = (self._targets(y).double() - mean).square() / ((variance + noise) * self.tails())  # [N, C]
        factor, error = ratio.mean(0), ratio.std(0) / len(ratio) ** 0.5
        self.inflation = torch.where((factor - 1).abs() > error, factor, 1.0).clamp_min(1.0 if only_widen else 0.0)

    def tails(self) -> Tensor:
        """ν/(ν − 2) [..., 1, 1]: the variance of the predictive Student t over its squared scale."""
        degrees = self.posterior().t_degrees[..., None, None]
        return torch.where(degrees > 2, degrees / (degrees - 2), torch.inf)

    # -- predicting ---------------------------------------------------------------------------------------------------

    def functions(self, features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Mean and variance [..., N, C] of the function at each row, and the noise's variance [..., 1, C]."""
        posterior = self.posterior()
        noise = posterior.noise_variance.unsqueeze(-2)
        return features @ posterior.mean, posterior.variance(features).unsqueeze(-1) * noise, noise

    def joint(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Mean [..., N, C] of the function and its covariance between rows, [..., C, N, N]."""
        posterior = self.posterior()
        between = posterior.relative_covariance(features).unsqueeze(-3)
        covariance = posterior.noise_variance[..., None, None] * between * self.tails().unsqueeze(-1)
        return features @ posterior.mean, covariance

    def sample_weights(self, n_samples: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw output weights, [n_samples, ..., D, C], from the Gaussian with the mean and covariance of their t."""
        posterior = self.posterior()
        noise = randn((n_samples, *posterior.mean.shape), like=posterior.mean, generator=generator)
        scale = (posterior.noise_variance.unsqueeze(-2) * self.tails()).sqrt()
        return posterior.mean + posterior.weight_noise(noise) * scale

    def _targets(self, y: Tensor) -> Tensor:
        y = y.unsqueeze(-1) if y.dim() == 1 else y
        if y.shape[-1] != self.n_outputs:
            raise ValueError(f"y must have {self.n_outputs} outputs; got shape {tuple(y.shape)}")
        return y


def _row_statistics(features: Tensor, y: Tensor, weight: Tensor | None) -> RowStatistics:
    """Sums over rows in double precision."""
    return row_statistics(features.double(), y.double(), None if weight is None else weight.double())


class SoftmaxOutput(_Output):
    """y ~ Categorical(softmax ΦW) with matrix Gaussian weights given the rows seen; Φ are features of rows.

    Rows that come later are conditioned on with this posterior as their prior. That is not exact, as it is for Gaussian
    noise: the posterior of earlier rows is kept as a Gaussian. Trained weights ``start`` [D, K] stay the mean when the
    layer is fitted, and rows that come later move them.
    """

    def __init__(self, group_sizes: Sequence[int], n_outputs: int, start: Tensor | None = None) -> None:
        super().__init__()
        self.group_sizes, self.n_outputs, self.keeps_start = tuple(group_sizes), n_outputs, start is not None
        self.log_precision = nn.Parameter(torch.zeros(len(self.group_sizes)))
        d, k = sum(self.group_sizes), n_outputs
        self.mean, self.start = _zeros(d, k), _zeros(d, k)
        self.count, self.inflation, self.sharpness = _zeros(), _zeros(), _zeros()
        self.row_curvature, self.class_curvature = _zeros(d, d), _zeros(*((k, k) if k <= MOST_CLASSES else (k,)))
        if start is not None:
            self.start.copy_(start.detach())
        self.forget()

    @property
    def statistics(self) -> Curvature:
        """The curvature of the rows that were seen."""
        return Curvature(self.row_curvature, self.class_curvature)

    @torch.no_grad()
    def forget(self) -> None:
        """Go back to before any rows were seen."""
        self.mean.copy_(self.start)
        for buffer in (*self.statistics, self.count):
            buffer.zero_()
        self.inflation.fill_(1.0)
        self.sharpness.fill_(1.0)

    # -- conditioning on rows -----------------------------------------------------------------------------------------

    @torch.no_grad()
    def update(self, features: Tensor, y: Tensor, weight: Tensor | None = None) -> None:
        """Condition on more rows, what was seen before being their prior."""
        rows = _class_rows(features, y, weight)
        self.count.add_(rows.weight.sum())
        self._condition(rows, self.mean.clone(), learn_precision=False)

    @torch.no_grad()
    def fit(self, features: Tensor, y: Tensor, weight: Tensor | None = None, *, learn_precision: bool = True) -> None:
        """Forget, and condition on these rows; with ``learn_precision`` at the prior precisions of the evidence.

        At the optimum of the bound the precision of a group with n features is a = (nK − a ΣΣ_ii) / Σ‖m_i‖² over its
        features i; taken as a step, this converges quickly (MacKay 1992). It starts where each group's part of a logit
        has the variance one, so the unit of the features does not matter.
        """
        rows = _class_rows(features, y, weight)
        self.forget()
        self.count.add_(rows.weight.sum())
        if self.keeps_start:
            self._spread(rows)
            return
        if learn_precision:
            self.log_precision.copy_(self._unit_precision(_mean_squares(rows)))
        self._condition(rows, torch.zeros_like(self.mean), learn_precision=learn_precision)

    def _spread(self, rows: ClassRows) -> None:
        """The covariance around trained weights: (ΦᵀΩΦ)⁻¹ ⊗ (mean of diag p − ppᵀ)⁻¹, as wide as the rows allow.

        Rows that trained the features are too sure, and surer ones would count less than others. So all count alike,
        directions that they do not have get little precision, and the scale is the largest, up to ``WIDEST``, at which
        rows lose ``COST`` nats on average. New rows lose less, as some of them are wrong.
        """
        new = expected_curvature(rows, self.mean.to(rows.features.dtype).unsqueeze(0), alike=True)
        if new.classes.dim() == 2:
            new.classes.add_(new.classes.trace() / self.n_outputs**2)  # a shift of all logits changes no probability
        sums = new.classes.trace() if new.classes.dim() == 2 else new.classes.sum()
        share = DAMPING * rows.weight.sum() * sums / new.rows.trace().clamp_min(1e-300) / self.n_outputs
        sizes = torch.tensor(self.group_sizes, device=share.device)
        self.log_precision.copy_(self._unit_precision(_mean_squares(rows)) + (share / sizes).clamp_min(1e-30).log())
        _add(self.statistics, new)
        counted = rows.weight.nonzero().squeeze(-1)
        step = max(1, len(counted) // max(100, min(1_000, 2**23 // self.n_outputs)))
        some = ClassRows(*(part[counted[::step]] for part in rows))
        score, weight = self._scores(some.features, some.y), some.weight / some.weight.sum()
        least = (score(0.0, 1.0) * weight).sum() - COST
        low, high = -8.0, math.log2(WIDEST)
        for _ in range(8):
            middle = (low + high) / 2
            low, high = (middle, high) if (score(2.0**middle, 1.0) * weight).sum() >= least else (low, middle)
        self.log_precision.sub_(low * math.log(2.0))
        for buffer in self.statistics:
            buffer *= 2.0**-low

    @torch.no_grad()
    def calibrate(self, features: Tensor, y: Tensor, *, only_widen: bool) -> None:
        """Choose a factor of all variances, then one of all logits, by the log-likelihood of rows that were not seen.

        Features overfit their training rows, so these look certain, and the evidence may leave the weights too free.
        A factor is taken where it is better than none by more than a standard error.
        """
        score = self._scores(features, y)

        def best(values: Sequence[float], log_likelihood: Callable[[float], Tensor]) -> float:
            scores = {value: log_likelihood(value) for value in values}
            chosen = max(scores, key=lambda value: scores[value].mean().item())
            gain = scores[chosen] - scores[1.0]
            return chosen if gain.mean() > gain.std() / len(gain) ** 0.5 else 1.0

        powers = [step / 4 for step in range(-16, 17)]
        inflation = best([4.0**p for p in powers if p >= 0 or not only_widen], lambda value: score(value, 1.0))
        sharpness = best([2.0**p for p in powers if p <= 0 or not only_widen], lambda value: score(inflation, value))
        self.inflation.fill_(inflation)
        self.sharpness.fill_(sharpness)

    def _scores(self, features: Tensor, y: Tensor) -> Callable[[float, float], Tensor]:
        """The log-likelihood of each row by a factor of all variances and one of all logits, with the same draws."""
        generator = torch.Generator(features.device).manual_seed(0)
        n_draws = max(8, min(64, 2**21 // (len(y) * self.n_outputs)))
        centre = features @ self.mean.to(features.dtype)
        spread = self.posterior().sample_logits(features, n_draws, generator) - centre
        centre, spread = (part.float().mT.contiguous() for part in (centre, spread))  # [K, N], the quicker order
        chosen = y.expand(n_draws, 1, -1)

        def log_likelihood(inflation: float, sharpness: float) -> Tensor:
            log_p = torch.log_softmax(sharpness * (centre + inflation**0.5 * spread), -2)
            return torch.logsumexp(log_p.gather(-2, chosen).squeeze(-2), 0).double() - math.log(n_draws)

        return log_likelihood

    def _condition(self, rows: ClassRows, anchor: Tensor, *, learn_precision: bool) -> None:
        """Rounds of the mean, the rows' curvature and the precisions in turn, each at the others' last values.

        ``anchor`` is the mean of the weights before these rows.
        """
        n_draws = 1
        if self.n_outputs <= MOST_CLASSES:
            n_draws = 2 * max(2, min(128, CHEAP // (len(rows.y) * self.mean.numel())))
        noise = _paired_noise(n_draws, self.mean)
        before = Curvature(*(part.clone() for part in self.statistics))
        unit = self._unit_precision(_mean_squares(rows)).double()
        limits = unit - LOG_RANGE, unit + LOG_RANGE
        new = expected_curvature(rows, self.mean.to(rows.features.dtype).unsqueeze(0))
        for _ in range(MOST_ROUNDS):
            q = self.posterior(before, new)
            draws = q.deviations(noise)
            moved = self._move_mean(rows, draws, anchor, before, q)
            found = expected_curvature(rows, (self.mean + draws).to(rows.features.dtype))
            new = Curvature(*((a + b) / 2 for a, b in zip(new, found, strict=True)))  # whole steps swing
            missing = self._learn_precision(before, new, limits) if learn_precision else 0.0
            spread = self.posterior(before, new).feature_variances()
            change = (spread / q.feature_variances()).log().abs().max()
            if moved < 0.02 and missing < 0.01 and change < 0.01:
                break
        else:
            warnings.warn(
                f"the head has not converged after {MOST_ROUNDS} rounds: the mean moves by {moved:.2g} standard "
                f"deviations, a log variance by {change:.2g}",
                stacklevel=4,
            )
        _add(self.statistics, new)

    def _move_mean(
        self, rows: ClassRows, deviations: Tensor, anchor: Tensor, before: Curvature, q: ClassWeights
    ) -> float:
        """Steps of L-BFGS in units of the posterior's standard deviations; gives the largest change in these."""
        a, centre = self.prior_precision().double().unsqueeze(-1), self.mean.clone()
        steps = torch.zeros_like(centre).requires_grad_()
        optimiser = torch.optim.LBFGS(
            [steps], max_iter=MEAN_STEPS, line_search_fn="strong_wolfe", tolerance_grad=0.02, tolerance_change=1e-3
        )

        def loss() -> Tensor:
            with torch.enable_grad():
                mean = centre + q.deviations(steps)
            off = mean.detach() - anchor
            shrink = a * off + before.times(off)
            value, gradient = expected_log_likelihood(rows, (mean.detach() + deviations).to(rows.features.dtype))
            (steps.grad,) = torch.autograd.grad(mean, steps, shrink - gradient.double())
            return 0.5 * (shrink * off).sum() - value.double()

        optimiser.step(loss)
        self.mean.copy_(centre + q.deviations(steps.detach()))
        return steps.detach().abs().max().item()

    def _learn_precision(self, before: Curvature, new: Curvature, limits: tuple[Tensor, Tensor]) -> float:
        """Steps of the precisions for this mean and curvature; gives how far the first one moved a logarithm."""
        sizes, old, energy = list(self.group_sizes), self.log_precision.clone(), self.mean.square().sum(-1)
        for _ in range(PRECISION_ROUNDS):
            free = self.n_outputs - self.prior_precision().double() * self.posterior(before, new).feature_variances()
            groups = zip(free.split(sizes), energy.split(sizes), strict=True)  # free: parameters that rows determine
            best = torch.stack([mine.sum() / size.sum().clamp_min(1e-30) for mine, size in groups])
            best = best.clamp_min(1e-30).log().clamp(*limits)
            missing = (best - self.log_precision).abs().max()
            self.log_precision.copy_((self.log_precision + best) / 2)  # whole steps may swing
            if missing < 0.01:
                break
        return (self.log_precision - old).abs().max().item()

    # -- predicting ---------------------------------------------------------------------------------------------------

    def posterior(self, *curvatures: Curvature) -> ClassWeights:
        """q(W) given the rows seen so far, or rows of these curvatures, in double precision."""
        parts = zip(*curvatures or [self.statistics], strict=True)
        total = Curvature(*(functools.reduce(torch.add, part) for part in parts))
        return class_posterior(self.mean, self.prior_precision().detach().double(), total)

    def joint(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Mean [N, K] of the logits and the covariance between rows of each, [K, N, N]."""
        between = features @ self.posterior().class_covariances() @ features.mT
        return features @ self.mean * self.sharpness, between * self.inflation * self.sharpness**2

    def sample_logits(self, features: Tensor, n_samples: int, generator: torch.Generator | None = None) -> Tensor:
        """Draws of the logits at each row, [n_samples, N, K]."""
        centre = features @ self.mean.to(features.dtype)
        drawn = self.posterior().sample_logits(features, n_samples, generator)
        return self.sharpness * (centre + self.inflation.sqrt() * (drawn - centre))

    def sample_weights(self, n_samples: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw output weights, [n_samples, D, K]."""
        noise = randn((n_samples, *self.mean.shape), like=self.mean, generator=generator)
        return self.sharpness * (self.mean + self.inflation.sqrt() * self.posterior().deviations(noise))


def _class_rows(features: Tensor, y: Tensor, weight: Tensor | None) -> ClassRows:
    features = at_least_float32(features)
    weight = torch.ones_like(features[:, 0]) if weight is None else weight.to(features.dtype)
    return ClassRows(features, y, weight)


def _mean_squares(rows: ClassRows) -> Tensor:
    return (rows.features.square() * rows.weight.unsqueeze(-1)).sum(0) / rows.weight.sum()


def _paired_noise(n_draws: int, like: Tensor) -> Tensor:
    """Standard normal noise [S, D, K] in pairs of opposite sign, always the same; zero for one draw."""
    if n_draws == 1:
        return torch.zeros_like(like).unsqueeze(0)
    generator = torch.Generator(like.device).manual_seed(0)
    half = randn((n_draws // 2, *like.shape), like=like, generator=generator)
    return torch.cat([half, -half])

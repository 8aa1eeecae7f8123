"""Experts beside the networks, weighed by rows that none of them has seen.

The functions of all experts are one mixture, with weights w that add up to one,

    centre Σ w μ,        variance Σ w (u + (μ − centre)²),

whose noise, inflation and tails are then learned from held-out rows as those of networks alone. Weights are those under
which held-out errors are smallest: by the mean log density of a Student t, in which one wild row decides nothing, and
by the logarithm of the root mean square, in which it does (stacking: Wolpert 1992; Yao et al. 2018).

Where the process is less sure than at nearly all held-out rows, these say nothing of how unsure networks should be, and
the process knows how rough the data are: there the variance of the mixture is at least that of the process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import special
from threadpoolctl import threadpool_limits

from vmg.fit.boosted_trees import BoostedTrees
from vmg.fit.calibration import HeldOutFunctions, HeldOutPredictions, known_variance
from vmg.fit.ensemble import Expert, Function, Mixture
from vmg.fit.gaussian_process import GaussianProcess
from vmg.fit.trainer import MemberRun
from vmg.math.distributions import Array, best_student_score, lowest

__all__ = ["EXPERTS", "MOST_ROWS", "Stack", "mix", "mix_held_out", "pool", "stack_experts", "stacking_loss", "weigh"]

EXPERTS: dict[str, type[Expert]] = {kind.name: kind for kind in (GaussianProcess, BoostedTrees)}
"""Experts that can stand beside the networks, by name."""

FEWEST_ROWS, MOST_ROWS = 50, 50_000  # with which experts beside the networks are fitted
LEAST_WEIGHT = 0.03  # of an expert; with less it is dropped
LEAST_UNSURE = 0.2  # weight of the experts that know ignorance, all together
PRIOR_ROWS = 30.0  # that the prior of the log weights counts as: N(·, 3²), around one of the networks and
LEAN = {GaussianProcess.name: -1.0, BoostedTrees.name: -2.0}  # these of others: few rows change little
LEAD = 3.0  # of the log weight of one expert, where a search begins


@dataclass(frozen=True)
class Stack:
    """Experts beside the networks; ``weight`` [1 + K] has that of the networks first."""

    experts: tuple[Expert, ...]
    weight: Array
    known: float = 0.0  # variance of the process, above which that of the mixture is not smaller

    @property
    def weights(self) -> dict[str, float]:
        """The weight of each expert by its name."""
        names = ("networks", *(expert.name for expert in self.experts))
        return {name: float(weight) for name, weight in zip(names, self.weight, strict=True)}

    def least_noise(self, of_networks: float) -> float:
        """Variance of the noise that experts find on rows they saw, in the mean."""
        return float(self.weight @ [of_networks, *(expert.noise for expert in self.experts)])

    def mix(self, x: Array, networks: Mixture, extrapolation: Array) -> Mixture:
        """The mixture [N, 1] at squashed rows x [N, D]; ``extrapolation`` [N] is the factor of experts' variances."""
        said = [expert.predict(x) for expert in self.experts]
        loc = np.column_stack([networks.loc, *(one.loc for one in said)])
        variance = np.column_stack([networks.variance, *(one.variance * extrapolation for one in said)])
        process = np.array([isinstance(expert, GaussianProcess) for expert in (None, *self.experts)])
        least = np.where(process & (variance > self.known), variance, 0.0).max(1)
        mixed = mix(loc, variance, self.weight)
        return Mixture(mixed.loc[:, None], mixed.variance[:, None], least[:, None])

    def factor(self, x: Array, networks: Array, extrapolation: Array, of_networks: Array) -> Array:
        """F [K, N] with FᵀF the covariance between rows of the mixture, from that of the networks and their centre."""
        locs = np.stack([networks, *(expert.predict(x).loc for expert in self.experts)])
        deviations = np.sqrt(self.weight)[:, None] * (locs - self.weight @ locs)
        own = [expert.factor(x) * np.sqrt(extrapolation) for expert in self.experts]
        scaled = [root * part for root, part in zip(np.sqrt(self.weight), [of_networks, *own], strict=True)]
        return np.concatenate([*scaled, deviations])

    def updated(self, x: Array, y: Array, weight: Array | None) -> Stack:
        """The stack after more rows; weights stay."""
        return replace(self, experts=tuple(expert.updated(x, y, weight) for expert in self.experts))

    def check(self, n_inputs: int) -> None:
        """Raise a ValueError unless experts are of so many inputs and weights add up to one."""
        for expert in self.experts:
            expert.check(n_inputs)
        weight = self.weight
        if weight.shape != (1 + len(self.experts),) or not ((weight >= 0).all() and abs(weight.sum() - 1) < 1e-6):
            raise ValueError(f"weights of {1 + len(self.experts)} experts must add up to one; got {weight!r:.80}")


NETWORKS_ALONE = Stack((), np.ones(1))


def stack_experts(
    names: Sequence[str], trained: MemberRun[Any], networks: tuple[HeldOutFunctions, HeldOutFunctions]
) -> tuple[Stack, tuple[HeldOutFunctions, HeldOutFunctions]]:
    """Fit experts to the rows of trained networks, weigh them, and mix what they say of held-out rows.

    ``networks`` are the functions of the networks at held-out rows of folds and of regions. Experts without weight are
    dropped.
    """
    rows, held = trained.rows, trained.held
    assert held is not None
    kinds = [kind for name, kind in EXPERTS.items() if name in names and rows.x.shape[1] <= kind.most_inputs]
    with threadpool_limits(1):  # so few rows gain nothing from several threads, whose sums would round differently
        fitted = [kind.fit(rows, held.index) for kind in kinds]
    folds, regions = (
        [one, *(pool(said, held, one, regions=kind) for _, said in fitted)]
        for one, kind in zip(networks, (False, True), strict=True)
    )
    processes = [k for k, (expert, _) in enumerate(fitted, 1) if isinstance(expert, GaussianProcess)]
    known = max((known_variance(folds[k].variance, regions[k].variance) for k in processes), default=0.0)
    share = weigh(folds, ["networks", *(expert.name for expert, _ in fitted)])
    kept = np.append(True, share[1:] > 0)
    experts = tuple(expert for (expert, _), stays in zip(fitted, kept[1:], strict=True) if stays)
    return Stack(experts, share[kept], known), (mix_held_out(folds, share), mix_held_out(regions, share))


def mix(loc: Array, variance: Array, weight: Array) -> Function:
    """The mixture of functions with centres and variances [N, K] and weights [K]."""
    centre = loc @ weight
    return Function(centre, variance @ weight + np.square(loc - centre[:, None]) @ weight)


def pool(
    said: Sequence[Function], held: HeldOutPredictions, like: HeldOutFunctions, *, regions: bool
) -> HeldOutFunctions:
    """Predictions of an expert for the held-out rows of ``like``, which are those of the networks.

    ``said`` has, for each group of the design, the function of an expert that has not seen the group's rows, at the
    rows that were checked.
    """
    parts = [Function(np.zeros(0), np.zeros(0))]
    for g, place, _, _, factor in held.of_groups(regions=regions):
        parts.append(Function(said[g].loc[place], said[g].variance[place] * factor))
    loc, variance = (np.concatenate(piece) for piece in zip(*parts, strict=True))
    return like._replace(loc=loc, variance=variance, excess=np.zeros(len(loc)))


def mix_held_out(experts: Sequence[HeldOutFunctions], weight: Array) -> HeldOutFunctions:
    """The mixture of what experts predict for the same held-out rows."""
    loc, variance, excess = (
        np.stack([getattr(one, part) for one in experts], 1) for part in ("loc", "variance", "excess")
    )
    mixed = mix(loc, variance, weight)
    return experts[0]._replace(loc=mixed.loc, variance=mixed.variance, excess=excess @ weight**2)


def weigh(experts: Sequence[HeldOutFunctions], names: Sequence[str]) -> Array:
    """Weights [K] of experts that predict the same held-out rows; the first are the networks.

    Experts with little weight get none, and trees, which know no ignorance, do not stand alone.
    """
    lean, n_experts = np.array([LEAN.get(name, 0.0) for name in names]), len(experts)
    starts = np.concatenate([lean[None] + 0.1, LEAD * np.eye(n_experts)])
    loss, rounds = stacking_loss(experts, lean), 60 * n_experts
    best = lowest(loss, starts, first_step=1.0, rounds=rounds, x_tolerance=1e-2, loss_tolerance=1e-5)
    weight = special.softmax(best)
    weight = np.where(weight < LEAST_WEIGHT, 0.0, weight)
    weight /= weight.sum()
    knows = np.array([name != BoostedTrees.name for name in names])
    if weight[knows].sum() < LEAST_UNSURE:
        weight *= (1 - LEAST_UNSURE) / weight[~knows].sum() * ~knows
        weight[0] = LEAST_UNSURE
    return weight


def stacking_loss(experts: Sequence[HeldOutFunctions], lean: Array) -> Callable[[Array], float]:
    """The loss of log weights [K] on errors of rows that no expert has seen, with a prior around ``lean``.

    It is − log density of a Student t at its best scale + log root mean square. A mean of few members errs more than
    that of all will, by the excess.
    """
    first = experts[0]
    error = np.stack([first.y - one.loc for one in experts], 1)
    share = first.weight / first.weight.sum()
    excess = share @ np.stack([one.excess for one in experts], 1)

    def loss(values: Array) -> float:
        weight, away = special.softmax(values), values - lean
        squared = np.square(error @ weight)
        squared = squared * max(0.5, 1 - excess @ weight**2 / (share @ squared + 1e-12))
        fit = best_student_score(squared, share)
        prior = np.square((away - away.mean()) / 3).sum()
        return float(0.5 * np.log(share @ squared + 1e-12) - fit + 0.5 * PRIOR_ROWS * prior / len(error))

    return loss

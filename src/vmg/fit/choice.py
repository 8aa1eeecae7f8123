"""Choosing a likelihood: candidates that a target's values allow, compared on held-out training rows by a short fit.

One small ensemble learns features of the target and of its logarithm together. Every candidate gets an output layer on
these features. Its score is the mean log density of targets that members have not seen, in the target's own unit:
a density on another scale counts with its Jacobian, and where targets are whole numbers, densities are integrated over
a unit around each, so that they compare with probabilities.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import special

from vmg.fit.calibration import (
    HeldOut,
    HeldOutPredictions,
    calibrate,
    calibrate_scalar,
    held_out_errors,
    scalar_scores,
)
from vmg.fit.design import MIN_ROWS, Design, Size, TrainingPlan, ordinary_rows, squash, threads_for
from vmg.fit.gaussian import RegressionMembers
from vmg.fit.glm import ScalarMembers
from vmg.fit.noise import fit_noise_field
from vmg.fit.trainer import GroupRows, HeldOutRows, train_members
from vmg.likelihoods.families import LIKELIHOODS, LogNormal, make_likelihood
from vmg.likelihoods.scalar import HEADROOM, TargetKind, is_whole
from vmg.math.distributions import student_log_density
from vmg.prediction.student import LogTransform, Rectified, TargetTransform

__all__ = ["LikelihoodChoice", "before_transform", "choose_likelihood", "choose_transform"]

Array = NDArray[np.float64]

PILOT_ROWS = 1_000
FEWEST_ROWS = 40  # fewer rows cannot tell likelihoods apart
PILOT_SIZE = Size((50,), ("relu", "tanh"), 4, TrainingPlan(max_steps=60, patience=30, refit_steps=0))
LAYER_PLAN = TrainingPlan(max_steps=20, patience=20, refit_steps=0)
MARGIN = 1.0  # standard errors by which a candidate must beat the first


FEW_LEVELS = 10  # whole numbers with at most so many different values are grades
ROWS_OF_LEVEL = 5  # on average, of grades
LARGE_COUNT = 30.0  # whole numbers whose median is above are amounts


@dataclass(frozen=True)
class LikelihoodChoice:
    """The name of a likelihood, why it was taken, and the held-out score of each candidate."""

    name: str
    reason: str
    scores: dict[str, float] = field(default_factory=dict)


def choose_transform(likelihood: str, y: Array, *, rectify: bool) -> TargetTransform | None:
    """The map from an unbounded scale to targets y; with ``rectify`` numbers that are never negative
    stay so, but for a probability of negative ones that falls with their number."""
    if likelihood == "lognormal":
        return LogTransform(HEADROOM * float(y.max() + LogNormal.shift(y)), LogNormal.shift(y))
    finite = y[np.isfinite(y)]
    if likelihood == "censored" and (finite > 0).all() and (y[:, 0] >= 0).all():
        return LogTransform(HEADROOM * float(finite.max()))
    if rectify and likelihood in ("student", "normal", "mixture") and y.shape == (len(y),) and y.min() >= 0:
        return Rectified.after(len(y))
    return None


def before_transform(transform: TargetTransform | None, y: Array) -> Array:
    """Targets on the unbounded scale."""
    return y if transform is None or isinstance(transform, Rectified) else transform.inverse(y)


def choose_likelihood(x: Array, y: Array, weight: Array | None, seed: int) -> LikelihoodChoice:
    """Choose for rows in standard units x [N, D] and targets y [N] in their own unit."""
    kept = ordinary_rows(y, "lognormal" if y.min() >= 0 else "student")
    x, y, weight = x[kept], y[kept], None if weight is None else weight[kept]
    kind, candidates = find_candidates(y)
    first = candidates[0]
    if len(candidates) == 1:
        return LikelihoodChoice(first, f"the target is {kind.value}")
    if len(y) < max(FEWEST_ROWS, MIN_ROWS):
        return LikelihoodChoice(first, f"the target is {kind.value}, and {len(y)} rows are too few to compare")
    rng = np.random.default_rng(seed)
    some = rng.permutation(len(y))[:PILOT_ROWS] if len(y) > PILOT_ROWS else np.arange(len(y))
    given = None if weight is None else weight[some]
    with threads_for(PILOT_SIZE.step_work(len(some), x.shape[1])):
        pilot = _Pilot(squash(x[some]), y[some], given, rng, seed)
        by_row = {name: pilot.score(name) for name in candidates}
    scores = {name: float(np.mean(rows)) for name, rows in by_row.items() if np.isfinite(rows).all()}
    name = first
    if first in scores:
        for other, score in sorted(scores.items(), key=lambda item: -item[1]):
            gain = by_row[other] - by_row[first]
            if score - scores[first] > MARGIN * float(gain.std()) / np.sqrt(len(gain)):
                name = other
                break
    elif scores:
        name = max(scores, key=lambda other: scores[other])
    listed = ", ".join(f"{other} {score:.3f}" for other, score in sorted(scores.items(), key=lambda item: -item[1]))
    return LikelihoodChoice(name, f"the target is {kind.value}; mean log score of held-out rows: {listed}", scores)


def find_candidates(y: Array) -> tuple[TargetKind, list[str]]:
    """The kind of a target [N], and the likelihoods that suit it, the first where nothing speaks for another."""
    kind = _kind_of(y)
    suitable = [one for one in LIKELIHOODS.values() if kind in one.kinds and (one.closed_form or one.accepts(y))]
    return kind, [one.name for one in sorted(suitable, key=lambda one: kind not in one.first_for)]


def _kind_of(y: Array) -> TargetKind:
    levels = np.unique(y)
    whole = is_whole(levels)
    few = whole and 3 <= len(levels) <= FEW_LEVELS and len(y) >= ROWS_OF_LEVEL * len(levels)
    if levels[0] < 0 or len(levels) < 3:
        return TargetKind.GRADES if few else TargetKind.ANY
    if whole and float(np.median(y)) <= LARGE_COUNT:
        return TargetKind.GRADES if few else TargetKind.COUNT
    if levels[0] > 0 and levels[-1] < 1:
        return TargetKind.FRACTION
    if levels[0] > 0 and float(y.std()) < 0.1 * float(y.mean()):
        return TargetKind.NARROW
    return TargetKind.POSITIVE if levels[0] > 0 else TargetKind.AMOUNT


class _Pilot:
    """A small ensemble whose features every candidate shares."""

    def __init__(self, soft: Array, y: Array, weight: Array | None, rng: np.random.Generator, seed: int) -> None:
        self.soft, self.y, self.rng, self.seed = soft, y, rng, seed
        self.given = np.ones(len(y)) if weight is None else weight
        self.whole = bool((y == np.floor(y)).all())
        self.design = Design.choose(soft, PILOT_SIZE.n_members, rng, y)
        self.shift = LogNormal.shift(y) if y.min() >= 0 else None
        scales = [y] if self.shift is None else [y, np.log(y + self.shift)]
        self.centre, self.unit = np.array([s.mean() for s in scales]), np.array([s.std() or 1.0 for s in scales])
        self.targets = (np.stack(scales, 1) - self.centre) / self.unit
        generator = torch.Generator().manual_seed(seed)
        with torch.random.fork_rng(devices=[]):
            self.members = RegressionMembers(
                soft.shape[1], PILOT_SIZE.hidden, len(scales), PILOT_SIZE.activations, PILOT_SIZE.n_members
            )
        self.members.features.reset_parameters(generator)
        self.held = self._train(self.members, self.targets, PILOT_SIZE.plan)

    def _train(self, members: Any, targets: Array, plan: TrainingPlan) -> HeldOutRows:
        generator = torch.Generator().manual_seed(self.seed)
        rows = GroupRows.of(self.soft, targets, self.given, self.design, generator)
        [trained] = train_members([members], [rows], plan=plan)
        assert trained.held is not None
        return trained.held

    def _held_out(self, held: HeldOutRows) -> HeldOutPredictions:
        said = held.predictions
        return HeldOutPredictions.of(said.loc, said.variance, self.design, self.soft, held.index)

    def score(self, name: str) -> Array:
        """Log density of held-out targets under a candidate, the same rows in the same order for all."""
        if name in ("student", "normal"):
            return self._score_numbers(0, "identity")
        if name == "lognormal":
            return self._score_numbers(1, "log")
        return self._score_layer(name)

    def _score_numbers(self, output: int, scale: str) -> Array:
        """The Student t of an output: calibrated on one half of the held-out rows, scored on the other."""
        index = self.held.index
        targets = self.targets[index, output]
        pooled = self._held_out(self.held).pooled(targets, self.given[index], output, regions=False)
        folds, position = held_out_errors(pooled, shrink=True), pooled.position
        y, centre = self.y[index][position], targets[position] - folds.error
        least = float(self.held.predictions.noise[:, output].mean())
        inputs = np.column_stack([self.soft[index][position], centre])
        units = np.append(self.members.features.input_scale().numpy().astype(np.float64), 1.0)
        total = np.empty(len(y))
        for inside in self._halves(len(y)):
            part = HeldOut(*(column[inside] for column in folds))
            calibration = calibrate(part, None, least)
            noise_field = fit_noise_field(inputs[inside], part, calibration, units, self.rng)
            noise = calibration.noise * (1.0 if noise_field is None else noise_field.factor(inputs[~inside]))
            squared = noise + calibration.inflation * folds.variance[~inside]
            total[~inside] = self._log_score(
                y[~inside], folds.error[~inside], squared, calibration.degrees, output, log=scale == "log"
            )
        return total

    def _log_score(self, y: Array, error: Array, squared: Array, degrees: float, output: int, *, log: bool) -> Array:
        """Log density in the target's unit, or log probability of the unit around a whole number."""
        unit, shift = self.unit[output], self.shift or 0.0
        if self.whole:
            root = np.sqrt(squared)
            value = np.log(y + shift) if log else y

            def below(edge: Array) -> Array:
                with np.errstate(divide="ignore", invalid="ignore"):
                    at = np.log(np.maximum(edge + shift, 0.0)) if log else edge
                return special.stdtr(degrees, (error + (at - value) / unit) / root)

            low = np.where((y <= 0) if self.y.min() >= 0 else False, 0.0, below(y - 0.5))
            return np.log(np.maximum(below(y + 0.5) - low, 1e-300))
        density = student_log_density(error, squared, degrees) - np.log(unit)
        return density - np.log(y + shift) if log else density

    def _score_layer(self, name: str) -> Array:
        """A likelihood of one function on the pilot's features, after a few steps of its own."""
        likelihood = make_likelihood(name, self.y, self.given)
        targets = likelihood.targets(self.y)
        features = self.members.features
        with torch.random.fork_rng(devices=[]):
            members = ScalarMembers(
                features.in_features, features.hidden, likelihood, features.activations, PILOT_SIZE.n_members
            )
        members.features.load_state_dict(features.state_dict())
        held = self._train(members, targets, LAYER_PLAN)
        rows = self._held_out(held).pooled(targets[held.index], self.given[held.index], regions=False)
        total = np.empty(len(rows.loc))
        for inside in self._halves(len(rows.loc)):
            calibration = calibrate_scalar(likelihood, rows.take(inside), None, held.predictions.theta.mean(0))
            total[~inside] = scalar_scores(likelihood, rows.take(~inside), calibration)
        return total

    def _halves(self, n: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        half = np.random.default_rng(self.seed).permutation(n) % 2 == 0
        return half, ~half

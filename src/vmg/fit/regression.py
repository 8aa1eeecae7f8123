"""A regression ensemble: members trained on all rows but their own held-out ones, which then calibrate them."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from vmg.fit.calibration import Calibration, HeldOut, calibrate
from vmg.fit.design import Design
from vmg.fit.ensemble import train_ensemble
from vmg.fit.noise_field import NoiseField, fit_noise_field
from vmg.fit.noise_shape import NoiseShape, choose_shape
from vmg.fit.regression_members import MemberPredictions, RegressionMembers
from vmg.fit.scaling import InputRange, soften
from vmg.fit.size import Size
from vmg.math.evidence import LinearPosterior, NoisePrior
from vmg.nn.anchored import AnchoredFunctions
from vmg.training import Callback, History

__all__ = ["RegressionEnsemble", "RowPredictions", "fit_regression"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class RowPredictions:
    """Predictions of N rows in standard units: the Student t's parts, [N, C] each, and its degrees [C]."""

    loc: Array
    noise_variance: Array
    function_variance: Array
    degrees: Array


@dataclass(frozen=True)
class RegressionEnsemble:
    """Members conditioned on all rows, with what their held-out rows said of noise and ignorance."""

    members: RegressionMembers
    member_noise: Array  # what members take the noise for, [E, C]: the unit of their variances
    calibrations: tuple[Calibration, ...]  # of each output
    fields: tuple[NoiseField | None, ...]  # of each output
    input_range: InputRange
    shapes: tuple[NoiseShape, ...] = ()  # of each output's noise, where it is no Student t

    @cached_property
    def posterior(self) -> LinearPosterior:
        """What members know of their output weights."""
        return self.members.posterior()

    @cached_property
    def functions(self) -> AnchoredFunctions:
        """Functions of the members, in units of the noise's scale."""
        return AnchoredFunctions(self.members.features, self.posterior.mean, self.posterior.root)

    def predict(self, x: Array) -> RowPredictions:
        """Predict rows of inputs in standard units [N, D]."""
        soft = soften(x)
        means, relative = self.functions(soft)  # [E, N, C], [E, N]
        loc = means.mean(0)
        own = relative.T @ self.member_noise / len(means)
        variance = (own + _disagreement(means)) * self.input_range.remoteness(soft)[:, None]
        noise = np.empty_like(loc)
        for c, (calibration, field) in enumerate(zip(self.calibrations, self.fields, strict=True)):
            inputs = np.column_stack([soft, loc[:, c]])
            noise[:, c] = calibration.noise * (1.0 if field is None else field.factor(inputs))
        stretch = np.array([calibration.stretch for calibration in self.calibrations])
        degrees = np.array([calibration.degrees for calibration in self.calibrations])
        return RowPredictions(loc, noise, stretch * variance, degrees)

    @torch.no_grad()
    def function_factor(self, x: Array) -> Array:
        """F [K, N, C] with FᵀF the covariance between rows of each output's function, stretched as predictions are."""
        posterior = self.posterior
        soft = soften(x)
        phi = self.members.features(torch.as_tensor(soft, dtype=torch.float64))
        means = (phi @ posterior.mean).numpy()
        n_members = len(means)
        between = (means - means.mean(0)) / math.sqrt(max(n_members - 1, 1))
        half = torch.linalg.solve_triangular(posterior.root, phi.mT, upper=False).numpy()  # [E, D, N]
        own = half[..., None] * np.sqrt(self.member_noise / n_members)[:, None, None]
        stretch = np.sqrt([calibration.stretch for calibration in self.calibrations])
        remote = np.sqrt(self.input_range.remoteness(soft))[:, None]
        return np.concatenate([between, own.reshape(-1, *own.shape[2:])]) * stretch * remote

    def updated(self, x: Array, y: Array, weight: Array | None) -> RegressionEnsemble:
        """Condition the output layers on more rows, exactly; hidden layers and calibration stay."""
        members = copy.deepcopy(self.members)
        given = None if weight is None else torch.as_tensor(weight)
        members.update(torch.as_tensor(soften(x)), torch.as_tensor(y), given)
        return replace(self, members=members)

    def relevance(self) -> Array:
        """How strongly each input can move the first layer, [D]."""
        return self.members.features.relevance().double().numpy()


def _disagreement(means: Array) -> Array:
    """Variance between members, [N, C]; none where there is one."""
    return means.var(0, ddof=1) if len(means) > 1 else np.zeros(means.shape[1:])


def fit_regression(
    x: Array,
    y: Array,
    weight: Array | None,
    *,
    size: Size,
    seed: int,
    input_noise: bool,
    noise_prior: NoisePrior | None = None,
    degrees: float | None = None,
    shape: str = "student",
    callbacks: Sequence[Callback] = (),
) -> tuple[RegressionEnsemble, History]:
    """Fit to rows in standard units, x [N, D] and y [N, C]; held-out rows choose the tails unless ``degrees`` does.

    ``shape`` of the noise is "student", "mixture", or "auto": a mixture where held-out errors clearly ask for it.
    """

    def make_members() -> RegressionMembers:
        return RegressionMembers(x.shape[1], size.hidden, y.shape[1], size.activations, size.n_members, noise_prior)

    single = torch.as_tensor(y, dtype=torch.float32)
    trained = train_ensemble(make_members, x, single, weight, size=size, seed=seed, callbacks=callbacks)
    members, soft, design, history = trained.members, trained.soft, trained.design, trained.history
    held, whole = trained.held, InputRange.of(soft)
    members.condition_on(torch.as_tensor(soft), torch.as_tensor(y), None if weight is None else torch.as_tensor(weight))
    if held is None:  # too few rows to hold any out: members' own noise, and no stretch
        posterior = members.posterior()
        noise = posterior.noise_variance.numpy()
        tails = degrees or max(3.0, float(posterior.t_degrees.mean()))
        calibrations = tuple(Calibration(float(level), 1.0, tails) for level in noise.mean(0))
        return RegressionEnsemble(members, noise, calibrations, (None,) * y.shape[1], whole), history
    given = np.ones(len(x)) if weight is None else weight
    remote = design.remoteness(soft)[:, held.index]
    index, found = held.index, held.predictions
    scale = np.append(members.features.input_scale().numpy().astype(np.float64), 1.0)
    learned: list[Calibration] = []
    fields: list[NoiseField | None] = []
    shapes: list[NoiseShape] = []
    for c in range(y.shape[1]):
        folds, positions = held_out_errors(
            found, held.index, design, remote, y[index, c], given[index], c, regions=False
        )
        outside, _ = held_out_errors(found, held.index, design, remote, y[index, c], given[index], c, regions=True)
        calibration = calibrate(folds, outside, float(found.noise[:, c].mean()), degrees)
        learned.append(calibration)
        field = None
        at_rows = np.column_stack([soft[index][positions], y[index, c][positions] - folds.error])
        if input_noise:
            field = fit_noise_field(at_rows, folds, calibration, scale, trained.rng)
        fields.append(field)
        if shape != "student":
            variance = calibration.noise * (np.ones(len(at_rows)) if field is None else field.factor(at_rows))
            one = choose_shape(folds, variance, calibration, seed, asked=shape == "mixture")
            shapes += [one] if one is not None else []
    shaped = tuple(shapes) if len(shapes) == y.shape[1] else ()
    return RegressionEnsemble(members, found.noise, tuple(learned), tuple(fields), whole, shaped), history


def held_out_errors(
    found: MemberPredictions,
    index: NDArray[np.int64],
    design: Design,
    remote: Array,
    y: Array,
    weight: Array,
    output: int,
    *,
    regions: bool,
) -> tuple[HeldOut, NDArray[np.int64]]:
    """Errors of the members that have not seen a row, pooled over groups of members, and the rows' positions.

    Few members have not seen a row, so their mean errs more than that of all will. Errors of folds are shrunk by what a
    mean over all members takes off.
    """
    errors, variances, positions = [], [], []
    excess = 0.0
    for g, group in enumerate(design.groups):
        if group.region != regions:
            continue
        outside = np.flatnonzero(group.held_out[index])
        loc = found.loc[group.members][:, outside, output]
        between = loc.var(0, ddof=1) if len(loc) > 1 else np.zeros(len(outside))
        errors.append(y[outside] - loc.mean(0))
        variance = found.variance[group.members][:, outside, output].mean(0) + between
        variances.append(variance * remote[g, outside])
        positions.append(outside)
        excess += float((between * (1 / len(loc) - 1 / design.n_members)).sum())
    if not errors:
        return HeldOut(*(np.zeros(0),) * 3), np.zeros(0, dtype=np.int64)
    error, variance, position = (np.concatenate(parts) for parts in (errors, variances, positions))
    if not regions:
        total = float((error**2).sum())
        error = error * math.sqrt(max(0.5, 1 - excess / total)) if total > 0 else error
    return HeldOut(error, variance, weight[position]), position

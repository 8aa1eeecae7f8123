"""Ensembles for numbers: a Bayesian head on anchored features, its weights and noise integrated out.

Members are trained on all rows but their own held-out ones, which then calibrate them.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vmg.fit.calibration import (
    FEWEST_DEGREES,
    Calibration,
    HeldOutFunctions,
    HeldOutPredictions,
    MemberPredictions,
    calibrate,
    held_out_errors,
)
from vmg.fit.design import FitSettings, InputRange, squash, threads_for
from vmg.fit.ensemble import (
    Ensemble,
    Fitted,
    Function,
    HeldOutSample,
    Mixture,
)
from vmg.fit.noise import NoiseField, fit_noise_field
from vmg.fit.stacking import FEWEST_ROWS, MOST_ROWS, NETWORKS_ALONE, Stack, stack_experts
from vmg.fit.trainer import Kind, Members, train_ensemble
from vmg.math.distributions import Array, best_student_score
from vmg.math.evidence import (
    LinearPosterior,
    NoisePrior,
    condition_on_rows,
    log_evidence,
)
from vmg.model_file import require_shapes
from vmg.nn.anchored import AnchoredFunctions
from vmg.nn.output_layers import GaussianOutput
from vmg.prediction import StudentPrediction
from vmg.prediction.base import Factor, all_together

__all__ = [
    "FunctionEnsemble",
    "OutputLayers",
    "RegressionEnsemble",
    "RegressionMembers",
    "fit_regression",
    "held_out_functions",
    "inflate",
]

ROWS_AT_ONCE = 1024  # whose features of all members are small pieces of memory, which the allocator uses again


class RegressionMembers(Members):
    """E networks of anchored features with C outputs."""

    def __init__(self, *sizes: Any, n_outputs: int = 1, noise_prior: NoisePrior | None = None, **more: Any) -> None:
        super().__init__(*sizes, **more)
        batch_shape = (self.features.n_members,)
        self.head = GaussianOutput(
            self.features.group_sizes, n_outputs, noise_prior=noise_prior, batch_shape=batch_shape
        )

    @property
    def made_with(self) -> dict[str, Any]:
        return {**super().made_with, "n_outputs": self.head.n_outputs, "noise_prior": self.head.noise_prior}

    @property
    def log_precision(self) -> Tensor:
        """Logarithms of the prior's precisions, [E, G]."""
        return self.head.log_precision

    def evidence(self, features: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        """Log evidence of the rows with weights and noise integrated out, [E]."""
        return log_evidence(features, y, self.prior_precision(), weight=weight, prior=self.head.noise_prior)

    @torch.no_grad()
    def predict_held_out(self, x: Tensor, y: Tensor, seen: Tensor) -> MemberPredictions:
        """Functions of members that are conditioned on the rows they have seen, at all rows."""
        phi = self.features(x)
        targets = y.expand(len(phi), *y.shape[-2:])
        posterior, *_ = condition_on_rows(phi, targets, seen, self.prior_precision(), self.head.noise_prior)
        noise = posterior.noise_variance
        variance = posterior.variance(phi).unsqueeze(-1) * noise.unsqueeze(-2)
        return MemberPredictions.of(phi @ posterior.mean, variance, noise)

    def score(self, predictions: MemberPredictions, y: Tensor, weight: Tensor) -> float:
        """Mean log density of held-out errors under a Student t whose scale is the best, summed over outputs."""
        w, squared = weight.double().numpy(), (y.double().numpy() - predictions.loc) ** 2  # [E, n], [E, n, C]
        total = sum(best_student_score(errors[w > 0], w[w > 0]) for errors in np.moveaxis(squared, -1, 0))
        return float(total) if np.isfinite(total) else -np.inf

    @torch.no_grad()
    def update(self, x: Array, y: Array, weight: Array | None) -> None:
        """Condition every member on more rows, squashed inputs x [N, D] with targets y [N, C]."""
        for start in range(0, len(x), ROWS_AT_ONCE):
            part = slice(start, start + ROWS_AT_ONCE)
            given = None if weight is None else torch.as_tensor(weight[part]).expand(self.features.n_members, -1)
            self.head.update(self.features(torch.as_tensor(x[part])), torch.as_tensor(y[part]), given)


# Largest variance of a function in the range of the rows, where the targets' own is one: between the rows of a nearly
# noiseless table a process can be unsure by twenty times the spread of all targets.
MOST_VARIANCE = 4.0


class OutputLayers(NamedTuple):
    """Output weights of E members with C functions, and what held-out rows ask of these."""

    mean: Tensor  # of the weights, [E, F, C]
    root: Tensor  # lower Cholesky factors of their precisions, [E, F, F]
    units: Array  # of the variances of functions, [E, C]
    sharpness: float  # factor of the functions' centres
    inflation: Array  # factors of their variances, [C]


class FunctionEnsemble(Ensemble[Kind]):
    """Members with C functions, which outside the range of the rows go on as straight lines with unknown slopes."""

    @property
    @abstractmethod
    def _outputs(self) -> OutputLayers:
        """Output layers of the members."""

    @cached_property
    def functions(self) -> AnchoredFunctions:
        """Functions of the members."""
        return AnchoredFunctions(self.members.features, *self._outputs[:2])

    @cached_property
    def _known_slopes(self) -> Array:
        """Root mean square slope of the members' mean along each input, over the range, [D, C]."""
        rows = self.input_range.points()
        with threads_for(self.members.features.work(len(rows))), torch.inference_mode(False), torch.enable_grad():
            x = torch.as_tensor(rows).requires_grad_()
            centre = (self.members.features(x) @ self._outputs.mean).mean(0)  # [N, C]
            slopes = [torch.autograd.grad(one.sum(), x, retain_graph=True)[0] for one in centre.mT]  # C times [N, D]
        return self._outputs.sharpness * torch.stack(slopes, -1).square().mean(0).sqrt().numpy()

    def _drift(self, x: Array) -> Array:
        return self.input_range.drift(x, lambda: self._known_slopes, self._outputs.units.shape[1])

    def _stated(self, soft: Array) -> Mixture:
        """Mean of the members' functions, and its variance by their own accounts and their disagreement, [N, C]."""
        with threads_for(self.members.features.work(len(soft))):
            means, own = self.functions(soft)
        between = means.var(0, ddof=1) if len(means) > 1 else np.zeros(means.shape[1:])
        variance = own.T @ self._outputs.units / len(own) + between
        return Mixture(means.mean(0), variance * self.input_range.extrapolation_factor(soft)[:, None])

    def _inflated(self, stated: Mixture) -> Array:
        """Variances [N, C] from the stated ones."""
        return self._outputs.inflation * stated.variance

    def _calibrated(self, x: Array) -> Function:
        """Centre and variance at rows x [N, D] in standard units, [N, C] each, as held-out rows ask for."""
        stated = self._stated(squash(x))
        return Function(self._outputs.sharpness * stated.loc, self._inflated(stated) + np.square(self._drift(x)).sum(0))

    def function_factor(self, x: Array) -> Array:
        """F [K, N, C] with FᵀF the covariance between rows of each function, inflated as predictions are."""
        stated = self._stated(squash(x))
        ratio = self._inflated(stated) / np.maximum(stated.variance, np.finfo(np.float64).tiny)
        return np.concatenate([self._stated_factor(squash(x)) * np.sqrt(ratio), self._drift(x)])

    def _stated_factor(self, soft: Array) -> Array:
        with threads_for(self.members.features.work(len(soft))):
            factor = self.functions.factor(soft, np.sqrt(self._outputs.units))
        return factor * np.sqrt(self.input_range.extrapolation_factor(soft))[:, None]


@dataclass(frozen=True)
class RegressionEnsemble(FunctionEnsemble[RegressionMembers]):
    """Members conditioned on all rows, and the noise and ignorance that their held-out rows showed."""

    member_noise: Array  # variance of the noise by each member's estimate, [E, C]: the unit of its variances
    calibrations: tuple[Calibration, ...]  # of each output
    fields: tuple[NoiseField | None, ...]  # of each output
    reach: float  # largest distance of a target from the mean of all
    stack: Stack = NETWORKS_ALONE  # experts beside the networks, of one output

    def __post_init__(self) -> None:
        super().__post_init__()
        n_outputs, n_inputs = self.members.head.n_outputs, self.members.features.in_features
        require_shapes({"member_noise": (self.members.features.n_members, n_outputs)}, vars(self))
        if not len(self.calibrations) == len(self.fields) == n_outputs:
            raise ValueError(f"{n_outputs} outputs must have a calibration and a noise each")
        self.stack.check(n_inputs)
        for field in self.fields:
            if field is not None:
                field.check(n_inputs)
        if self.stack.experts and n_outputs > 1:
            raise ValueError(f"experts beside the networks are of one output; got {n_outputs}")

    @cached_property
    def posterior(self) -> LinearPosterior:
        """Posterior of the members' output weights."""
        with torch.inference_mode(False):  # it is kept, and used where there are gradients
            return self.members.head.posterior()

    @property
    def _outputs(self) -> OutputLayers:
        inflation = np.array([calibration.inflation for calibration in self.calibrations])
        return OutputLayers(self.posterior.mean, self.posterior.root, self.member_noise, 1.0, inflation)

    @property
    def weights(self) -> dict[str, float]:
        """The weight of each expert by its name."""
        return self.stack.weights

    def _inflated(self, stated: Mixture) -> Array:
        """The same within its limits; a centre beyond all targets is no better known than its distance from them."""
        inflation, known = np.array([(one.inflation, one.known) for one in self.calibrations]).T
        inflated = np.maximum(inflate(stated.variance, inflation, known), stated.least)
        beyond = np.maximum(np.abs(stated.loc) - self.reach, 0.0)
        return np.minimum(inflated, stated.most) + np.square(beyond)

    def _stated(self, soft: Array) -> Mixture:
        stated, extrapolation = super()._stated(soft), self.input_range.extrapolation_factor(soft)
        if self.stack.experts:
            stated = self.stack.mix(soft, stated, extrapolation)
        return stated._replace(most=MOST_VARIANCE * extrapolation[:, None])

    def _stated_factor(self, soft: Array) -> Array:
        networks = super()._stated_factor(soft)
        if not self.stack.experts:
            return networks
        centre, extrapolation = self.functions(soft)[0].mean(0)[:, 0], self.input_range.extrapolation_factor(soft)
        return self.stack.factor(soft, centre, extrapolation, networks[..., 0])[..., None]

    def predict(self, x: Array) -> StudentPrediction:
        """Predict rows of inputs in standard units [N, D], in standard units of the targets."""
        return self._with_noise(squash(x), self._calibrated(x), partial(self.function_factor, x))

    def _with_noise(self, soft: Array, functions: Function, factor: Factor) -> StudentPrediction:
        """Predictions of squashed rows [N, D] from their functions [N, C]."""
        noise = np.empty_like(functions.loc)
        for c, (calibration, field) in enumerate(zip(self.calibrations, self.fields, strict=True)):
            inputs = np.column_stack([soft, functions.loc[:, c]])
            noise[:, c] = calibration.noise * (1.0 if field is None else field.factor(inputs))
        degrees = np.array([calibration.degrees for calibration in self.calibrations])
        scales = np.sqrt(noise), np.sqrt(functions.variance)
        n_shared = self.members.features.n_members
        return StudentPrediction(functions.loc, *scales, degrees, factor, squeeze=False, n_shared=n_shared)

    def held_out_sample(self, x: Array, rows: Sequence[HeldOutFunctions]) -> HeldOutSample:
        """Predictions from functions of each output at held-out rows, whose positions are those among squashed x."""
        loc, variance = (np.stack([getattr(one, name) for one in rows], 1) for name in ("loc", "variance"))
        functions = Function(loc, self._inflated(Mixture(loc, variance)))
        factor = all_together(np.sqrt(functions.variance))
        return HeldOutSample(rows[0].position, self._with_noise(x[rows[0].position], functions, factor))

    def updated(self, x: Array, y: Array, weight: Array | None) -> RegressionEnsemble:
        """Condition the output layers on more rows, exactly; hidden layers and calibration stay."""
        members, soft = copy.deepcopy(self.members), squash(x)
        with threads_for(self.members.features.work(len(x))):
            members.update(soft, y, weight)
        stack = self.stack.updated(soft, y[:, 0], weight)
        inputs, reach = self.input_range.including(soft), max(self.reach, float(np.abs(y).max()))
        return replace(self, members=members, input_range=inputs, reach=reach, stack=stack)


def inflate(variance: Array, inflation: Array | float, known: Array | float) -> Array:
    """Variances of functions from the stated ones: what lies above ``known`` is not taken down."""
    return inflation * np.minimum(variance, known) + np.maximum(inflation, 1.0) * np.maximum(variance - known, 0.0)


def fit_regression(
    x: Array,
    y: Array,
    weight: Array | None,
    settings: FitSettings,
    *,
    input_noise: bool,
    degrees: float | None = None,
    experts: Sequence[str] = (),
) -> Fitted:
    """Fit an ensemble to rows in standard units, x [N, D] and y [N, C].

    Held-out rows choose the tails unless ``degrees`` does. ``experts`` are names of those beside the networks; several
    outputs, very many rows and too few to hold any out have networks alone.
    """
    n_outputs = y.shape[1]
    with threads_for(settings.size.step_work(*x.shape)):
        trained = train_ensemble(RegressionMembers, x, y, weight, settings, n_outputs=n_outputs)
        members, rows, held = trained.members, trained.rows, trained.held
        members.update(rows.x, y, rows.weight)  # on all rows, whatever each saw in training
        inputs, constant, reach = InputRange.of(rows.x), (None,) * n_outputs, float(np.abs(rows.y).max())
        if held is None:
            posterior = members.head.posterior()
            noise, tails = posterior.noise_variance.numpy(), degrees or float(posterior.t_degrees.mean())
            known = tuple(Calibration(float(level), 1.0, max(FEWEST_DEGREES, tails)) for level in noise.mean(0))
            return Fitted(RegressionEnsemble(members, inputs, noise, known, constant, reach), trained.history, None)
        folds, regions = held_out_functions(held)
        stack = NETWORKS_ALONE
        if experts and n_outputs == 1 and FEWEST_ROWS <= len(x) <= MOST_ROWS:
            stack, (fold, region) = stack_experts(experts, trained, (folds[0], regions[0]))
            folds, regions = [fold], [region]
        least = [stack.least_noise(float(level)) for level in held.said.parameters.mean(0)]
        errors = [held_out_errors(one, shrink=True) for one in folds]
        calibrations = tuple(
            calibrate(inside, held_out_errors(region, shrink=False), level, degrees)
            for inside, region, level in zip(errors, regions, least, strict=True)
        )
        fields: tuple[NoiseField | None, ...] = constant
        if input_noise:
            scale = np.append(members.features.input_scale().numpy().astype(np.float64), 1.0)
            fields = tuple(
                fit_noise_field(np.column_stack([rows.x[one.position], one.y - own.error]), own, found, scale, rows.rng)
                for one, own, found in zip(folds, errors, calibrations, strict=True)
            )
        ensemble = RegressionEnsemble(members, inputs, held.said.parameters, calibrations, fields, reach, stack)
        return Fitted(ensemble, trained.history, ensemble.held_out_sample(rows.x, folds))


def held_out_functions(held: HeldOutPredictions) -> tuple[list[HeldOutFunctions], list[HeldOutFunctions]]:
    """Functions of each output at held-out rows of folds and of regions, by the members that have not seen a row."""
    n_outputs = held.said.loc.shape[-1]
    folds, regions = ([held.pooled(c, regions=kind) for c in range(n_outputs)] for kind in (False, True))
    return folds, regions

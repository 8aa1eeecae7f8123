"""Ensembles for numbers: a Bayesian head on anchored features, its weights and noise integrated out.

Members are trained on all rows but their own held-out ones, which then calibrate them.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vmg.fit.calibration import Calibration, HeldOutFunctions, calibrate_groups, held_out_errors
from vmg.fit.design import InputRange, Size, Standardiser, count_directions, squash, threads_for
from vmg.fit.ensemble import Ensemble, Fitted, Function, HeldOutSample, Kind, StoredMembers
from vmg.fit.noise import NoiseField, NoiseShape, choose_shape, fit_noise_field
from vmg.fit.stacking import FEWEST_ROWS, MOST_ROWS, NETWORKS_ALONE, Stack, stack_experts
from vmg.fit.trainer import FitRows, Members, TrainedMembers, train_ensembles
from vmg.math.distributions import student_log_density
from vmg.math.evidence import (
    LinearPosterior,
    NoisePrior,
    condition_on_rows,
    group_precision,
    log_evidence,
    log_precision_prior,
)
from vmg.model_file import Document, Tensors, require_shapes, require_size
from vmg.nn.anchored import AnchoredFeatures, AnchoredFunctions
from vmg.nn.outputs import GaussianOutput
from vmg.prediction import MixtureNoisePrediction, StudentPrediction
from vmg.prediction.base import Factor, scaled_factor
from vmg.training import Callback

__all__ = [
    "FunctionEnsemble",
    "MemberPredictions",
    "RegressionEnsemble",
    "RegressionMembers",
    "RowPredictions",
    "fit_regression",
    "fit_regressions",
]

Array = NDArray[np.float64]

SCORE_DEGREES = 4.0  # of the Student t that scores held-out errors: one wild row decides nothing
ROWS_AT_ONCE = 1024  # whose features of all members are small pieces of memory, which the allocator uses again


class MemberPredictions(NamedTuple):
    """Centre and variance of each member's function [E, n, C], and its estimate of the noise's variance [E, C]."""

    loc: Array
    variance: Array
    noise: Array


class RegressionMembers(Members):
    """E networks of anchored features with C outputs."""

    def __init__(
        self,
        in_features: int,
        hidden: Sequence[int],
        n_outputs: int,
        activations: Sequence[str],
        n_members: int,
        noise_prior: NoisePrior | None = None,
        n_directions: int = 0,
    ) -> None:
        super().__init__()
        options = {"n_members": n_members, "n_directions": n_directions}
        self.features = AnchoredFeatures(in_features, hidden, activation=activations, **options)
        self.head = GaussianOutput(
            self.features.group_sizes, n_outputs, noise_prior=noise_prior, batch_shape=(n_members,)
        )

    def log_posterior(self, x: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Log evidence of the rows plus the anchored log prior."""
        log_precision = self.head.log_precision
        precision = group_precision(log_precision, self.features.group_sizes)
        evidence = log_evidence(self.features(x), y, precision, weight=weight, prior=self.head.noise_prior)
        return evidence + self.features.log_prior() + log_precision_prior(log_precision), evidence

    @torch.no_grad()
    def predict_held_out(self, x: Tensor, y: Tensor, seen: Tensor) -> MemberPredictions:
        """Functions of members that are conditioned on the rows they have seen, at all rows."""
        phi = self.features(x)
        targets = y.expand(len(phi), *y.shape[-2:])
        posterior, _ = condition_on_rows(phi, targets, seen, self.head.prior_precision(), self.head.noise_prior)
        noise = posterior.noise_variance
        variance = posterior.relative_variance(phi).unsqueeze(-1) * noise.unsqueeze(-2)
        return MemberPredictions(*(part.double().numpy() for part in (phi @ posterior.mean, variance, noise)))

    def score(self, predictions: MemberPredictions, y: Tensor, weight: Tensor) -> Array:
        """Mean log density of held-out errors under a Student t whose scale is the best, summed over outputs."""
        w = weight.double().numpy()  # [E, G, n]
        n_groups = w.shape[1]
        squared = ((y.double().numpy() - predictions.loc) ** 2).reshape(*w.shape, -1)
        squared, share = (np.swapaxes(part, 0, 1).reshape(n_groups, -1, *part.shape[3:]) for part in (squared, w))
        if n_groups == 1:  # of several, each has other rows
            squared, share = squared[:, share[0] > 0], share[:, share[0] > 0]
        kept = share > 0
        share = share / share.sum(1, keepdims=True)
        total = np.zeros(n_groups)
        for errors in np.moveaxis(squared, -1, 0):
            scale = np.nanmedian(np.where(kept, errors, np.nan), axis=1, keepdims=True) + 1e-12
            for _ in range(15):
                ratio = (SCORE_DEGREES + 1) / (SCORE_DEGREES + errors / scale)
                scale = (share * ratio * errors).sum(1, keepdims=True) + 1e-12
            total += (share * student_log_density(np.sqrt(errors), scale, SCORE_DEGREES)).sum(1)
        return np.where(np.isfinite(total), total, -np.inf)

    def condition_on(self, x: Tensor, y: Tensor, weight: Tensor | None) -> None:
        """Condition every member on all rows, whatever it saw in training."""
        self.head.forget()
        self.update(x, y, weight)

    @torch.no_grad()
    def update(self, x: Tensor, y: Tensor, weight: Tensor | None) -> None:
        """Condition every member on more rows."""
        for start in range(0, len(x), ROWS_AT_ONCE):
            part = slice(start, start + ROWS_AT_ONCE)
            given = None if weight is None else weight[part].expand(self.features.n_members, -1)
            self.head.update(self.features(x[part]), y[part], given)

    def posterior(self) -> LinearPosterior:
        """Posterior of the members' output weights."""
        return self.head.posterior()


@dataclass(frozen=True)
class RowPredictions:
    """Predictions of N rows in standard units: the Student t's parts, [N, C] each, and its degrees [C]."""

    loc: Array
    noise_variance: Array
    function_variance: Array
    degrees: Array

    def take(self, rows: NDArray[np.int64]) -> RowPredictions:
        """Some of the rows."""
        return RowPredictions(self.loc[rows], self.noise_variance[rows], self.function_variance[rows], self.degrees)

    def joined(self, other: RowPredictions) -> RowPredictions:
        """These rows, and those of another prediction of the same ensemble."""
        loc, noise, function = (
            np.concatenate([getattr(one, name) for one in (self, other)])
            for name in ("loc", "noise_variance", "function_variance")
        )
        return RowPredictions(loc, noise, function, self.degrees)


class FunctionEnsemble(Ensemble[Kind]):
    """Members with functions, which outside the range of the rows go on as straight lines with unknown slopes."""

    @property
    @abstractmethod
    def functions(self) -> AnchoredFunctions:
        """Functions of the members."""

    @property
    @abstractmethod
    def _centre_weights(self) -> Tensor:
        """Output weights of the members' centres, [E, F, C]."""

    def _drift(self, x: Array) -> Array:
        return self.input_range.drift(x, lambda: self._known_slopes, self.functions.n_outputs)

    @cached_property
    def _known_slopes(self) -> Array:
        """Root mean square slope of the members' mean along each input, over the range, [D, C]."""
        x = torch.as_tensor(self.input_range.points()).requires_grad_()
        with threads_for(self.members.features.work(len(x))), torch.enable_grad():
            centre = (self.members.features(x) @ self._centre_weights).mean(0)  # [N, C]
            slopes = [torch.autograd.grad(one.sum(), x, retain_graph=True)[0] for one in centre.mT]  # C times [N, D]
        return torch.stack(slopes, -1).square().mean(0).sqrt().numpy()

    def _functions_at(self, soft: Array) -> tuple[Array, Array, Array]:
        """Members' variances [E, N], their mean and the variance between them [N, C], at squashed rows [N, D]."""
        with threads_for(self.members.features.work(len(soft))):
            means, own = self.functions(soft)
        return own, means.mean(0), means.var(0, ddof=1) if len(means) > 1 else np.zeros(means.shape[1:])


@dataclass(frozen=True)
class RegressionEnsemble(FunctionEnsemble[RegressionMembers]):
    """Members conditioned on all rows, and the noise and ignorance that their held-out rows showed."""

    member_noise: Array  # variance of the noise by each member's estimate, [E, C]: the unit of its variances
    calibrations: tuple[Calibration, ...]  # of each output
    fields: tuple[NoiseField | None, ...]  # of each output
    shapes: tuple[NoiseShape, ...] = ()  # of each output's noise, where it is no Student t
    stack: Stack = NETWORKS_ALONE  # experts beside the networks, of one output

    @cached_property
    def posterior(self) -> LinearPosterior:
        """Posterior of the members' output weights."""
        return self.members.posterior()

    @cached_property
    def functions(self) -> AnchoredFunctions:
        """Functions of the members, in units of the noise's scale."""
        return AnchoredFunctions(self.members.features, self.posterior.mean, self.posterior.root)

    @property
    def _centre_weights(self) -> Tensor:
        return self.posterior.mean

    @property
    def weights(self) -> dict[str, float]:
        """The weight of each expert by its name."""
        return self.stack.weights

    @property
    def _inflation(self) -> Array:
        return np.array([calibration.inflation for calibration in self.calibrations])

    def predict(self, x: Array) -> RowPredictions:
        """Predict rows of inputs in standard units [N, D]."""
        soft = squash(x)
        relative, loc, between = self._functions_at(soft)
        own = relative.T @ self.member_noise / len(relative)
        factor = self.input_range.extrapolation_factor(soft)
        variance = (own + between) * factor[:, None]
        if self.stack.experts:
            mixed = self.stack.mix(soft, Function(loc[:, 0], variance[:, 0]), factor)
            loc, variance = mixed.loc[:, None], mixed.variance[:, None]
        return self._calibrated(soft, loc, variance, np.square(self._drift(x)).sum(0))

    def _calibrated(self, soft: Array, loc: Array, variance: Array, drift: Array | float = 0.0) -> RowPredictions:
        """Predictions of squashed rows [N, D] from the centre and the stated variance of their functions [N, C]."""
        noise = np.empty_like(loc)
        for c, (calibration, field) in enumerate(zip(self.calibrations, self.fields, strict=True)):
            inputs = np.column_stack([soft, loc[:, c]])
            noise[:, c] = calibration.noise * (1.0 if field is None else field.factor(inputs))
        degrees = np.array([calibration.degrees for calibration in self.calibrations])
        return RowPredictions(loc, noise, self._inflation * variance + drift, degrees)

    def held_out_sample(self, x: Array, rows: Sequence[HeldOutFunctions]) -> HeldOutSample:
        """Predictions from functions of each output at held-out rows, whose positions are those among squashed x."""
        loc, variance = (np.stack([getattr(one, name) for one in rows], 1) for name in ("loc", "variance"))
        return HeldOutSample(rows[0].position, self._calibrated(x[rows[0].position], loc, variance))

    def function_factor(self, x: Array) -> Array:
        """F [K, N, C] with FᵀF the covariance between rows of each output's function, inflated as predictions are."""
        soft = squash(x)
        with threads_for(self.members.features.work(len(x))):
            factor = self.functions.factor(soft, np.sqrt(self.member_noise))
            extrapolation = self.input_range.extrapolation_factor(soft)
            factor = factor * np.sqrt(extrapolation)[:, None]
            if self.stack.experts:
                centre = self.functions(soft)[0].mean(0)[:, 0]
                factor = self.stack.factor(soft, centre, extrapolation, factor[..., 0])[..., None]
        return np.concatenate([factor * np.sqrt(self._inflation), self._drift(x)])

    def distribution(
        self, x: Array, scaling: Standardiser, *, squeeze: bool
    ) -> StudentPrediction | MixtureNoisePrediction:
        """Predictions for rows x [N, D] in standard units; ``scaling`` is that of the targets."""
        factor = scaled_factor(self.function_factor, x, scaling.scale)
        return self.as_distribution(self.predict(x), scaling, factor, squeeze=squeeze)

    def as_distribution(
        self, standard: RowPredictions, scaling: Standardiser, factor: Factor | None = None, *, squeeze: bool
    ) -> StudentPrediction | MixtureNoisePrediction:
        """Distributions with these parameters; without a ``factor`` functions of all rows go together."""
        unit = scaling.scale
        together = np.sqrt(standard.function_variance)[None]
        parts: dict[str, Any] = {
            "loc": scaling.inverse(standard.loc),
            "noise_scale": np.sqrt(standard.noise_variance) * unit,
            "function_scale": np.sqrt(standard.function_variance) * unit,
            "df": standard.degrees,
            "factor": factor or scaled_factor(np.asarray, together, unit),
            "squeeze": squeeze,
            "n_shared": self.members.features.n_members,
        }
        return MixtureNoisePrediction(**parts, shapes=self.shapes) if self.shapes else StudentPrediction(**parts)

    def updated(self, x: Array, y: Array, weight: Array | None) -> RegressionEnsemble:
        """Condition the output layers on more rows, exactly; hidden layers and calibration stay."""
        members, soft = copy.deepcopy(self.members), squash(x)
        given = None if weight is None else torch.as_tensor(weight)
        with threads_for(self.members.features.work(len(x))):
            members.update(torch.as_tensor(soft), torch.as_tensor(y), given)
        stack = self.stack.updated(soft, y[:, 0], weight)
        return replace(self, members=members, input_range=self.input_range.including(soft), stack=stack)

    def _own_document(self) -> tuple[Tensors, Document]:
        tensors = {"noise": torch.from_numpy(self.member_noise.copy())}
        for c, field in enumerate(self.fields):
            if field is not None:
                tensors |= {f"field.{c}.{part}": torch.from_numpy(a.copy()) for part, a in asdict(field).items()}
        of_stack, stack = self.stack.to_document()
        tensors |= {f"stack.{key}": tensor for key, tensor in of_stack.items()}
        document = {
            "stack": stack,
            "n_outputs": self.members.head.n_outputs,
            "noise_prior": asdict(self.members.head.noise_prior),
            "calibrations": [asdict(calibration) for calibration in self.calibrations],
            "fields": [field is not None for field in self.fields],
            "shapes": [{part: array.tolist() for part, array in asdict(shape).items()} for shape in self.shapes],
        }
        return tensors, document

    @classmethod
    def _from_own_document(cls, stored: StoredMembers, inputs: InputRange, document: Document) -> RegressionEnsemble:
        n_outputs = require_size("n_outputs", document["n_outputs"])
        prior = NoisePrior(**document["noise_prior"])
        members = stored.members(RegressionMembers, n_outputs=n_outputs, noise_prior=prior)
        require_shapes({"noise": (members.features.n_members, n_outputs)}, stored.tensors)
        calibrations = tuple(
            Calibration(**{key: float(value) for key, value in one.items()}) for one in document["calibrations"]
        )
        fields = tuple(
            NoiseField.from_tensors(f"field.{c}.", stored.sizes["in_features"], stored.tensors) if there else None
            for c, there in enumerate(document["fields"])
        )
        noise_shapes = tuple(NoiseShape.from_document(one) for one in document["shapes"])
        if not len(calibrations) == len(fields) == n_outputs or len(noise_shapes) not in (0, n_outputs):
            raise ValueError(f"{n_outputs} outputs must have a calibration and a noise each, and a shape each or none")
        noise = stored.tensors["noise"].double().numpy().copy()
        own = {key.removeprefix("stack."): one for key, one in stored.tensors.items() if key.startswith("stack.")}
        stack = Stack.from_document(own, document["stack"], stored.sizes["in_features"])
        if stack.experts and n_outputs > 1:
            raise ValueError(f"experts beside the networks are of one output; got {n_outputs}")
        return cls(members, inputs, noise, calibrations, fields, noise_shapes, stack)


def fit_regressions(
    fits: Sequence[FitRows],
    *,
    size: Size,
    input_noise: bool,
    noise_prior: NoisePrior | None = None,
    degrees: float | None = None,
    shape: str = "student",
    experts: Sequence[str] = (),
    callbacks: Sequence[Callback] = (),
) -> list[Fitted[RegressionEnsemble]]:
    """Fit an ensemble to each of several sets of rows with targets [N, C], all of them at once.

    Held-out rows choose the tails unless ``degrees`` does. ``shape`` of the noise is "student", "mixture", or "auto": a
    mixture where held-out errors clearly ask for it. ``experts`` are names of those beside the networks; several
    outputs, several sets of rows, very many rows and too few to hold any out have networks alone.
    """
    n_inputs, n_outputs = fits[0].x.shape[1], fits[0].y.shape[1]

    def make_members() -> RegressionMembers:
        sizes = (n_inputs, size.hidden, n_outputs, size.activations, size.n_members)
        return RegressionMembers(*sizes, noise_prior, count_directions(max(len(fit.x) for fit in fits), n_inputs))

    with threads_for(sum(size.step_work(len(fit.x), n_inputs) for fit in fits)):
        trained = train_ensembles(make_members, fits, size=size, callbacks=callbacks)
        for fit, one in zip(fits, trained, strict=True):
            weight = None if fit.weight is None else torch.as_tensor(fit.weight)
            one.members.condition_on(torch.as_tensor(one.x), torch.as_tensor(fit.y), weight)
        checked = [_Checked.of(fit, one) for fit, one in zip(fits, trained, strict=True) if one.held is not None]
        if experts and len(checked) == len(fits) == n_outputs == 1 and FEWEST_ROWS <= len(fits[0].x) <= MOST_ROWS:
            checked = [checked[0].stacked(experts, trained[0])]
        calibrated = zip(checked, _calibrate_all(checked, degrees), strict=True)
        return [
            _uncalibrated(one, degrees) if one.held is None else _calibrated(one, *next(calibrated), input_noise, shape)
            for one in trained
        ]


def fit_regression(
    x: Array, y: Array, weight: Array | None, *, seed: int, **options: Any
) -> Fitted[RegressionEnsemble]:
    """Fit to rows in standard units, x [N, D] and y [N, C]; options as in :func:`fit_regressions`."""
    return fit_regressions([FitRows(x, y, weight, seed)], **options)[0]


class _Checked(NamedTuple):
    """Functions of each output at held-out rows of one fit, whose positions are those among all its rows."""

    fit: FitRows
    folds: list[HeldOutFunctions]
    regions: list[HeldOutFunctions]
    member_noise: Array  # [E, C]
    stack: Stack = NETWORKS_ALONE

    @classmethod
    def of(cls, fit: FitRows, trained: TrainedMembers[RegressionMembers]) -> _Checked:
        assert trained.held is not None
        index, rows = trained.held.index, trained.held_out(trained.held)
        weight = np.ones(len(index)) if fit.weight is None else fit.weight[index]
        folds, regions = (
            [rows.pooled(y, weight, c, regions=kind) for c, y in enumerate(fit.y[index].T)] for kind in (False, True)
        )
        folds = [one._replace(position=index[one.position]) for one in folds]
        return cls(fit, folds, regions, trained.held.predictions.noise)

    def stacked(self, names: Sequence[str], trained: TrainedMembers[RegressionMembers]) -> _Checked:
        """The same of networks and other experts, weighed by the held-out rows of folds."""
        assert trained.held is not None
        index, rows, fit = trained.held.index, trained.held_out(trained.held), self.fit
        both = (self.folds[0], self.regions[0])
        stack, (folds, regions) = stack_experts(
            names, trained.x, fit.y[:, 0], fit.weight, rows, index, both, trained.rng
        )
        return self._replace(folds=[folds], regions=[regions], stack=stack)


def _calibrate_all(checked: Sequence[_Checked], degrees: float | None) -> list[tuple[Calibration, ...]]:
    """Calibrations of the outputs of each fit, all of them at once."""
    if not checked:
        return []
    folds = [held_out_errors(rows, shrink=True) for one in checked for rows in one.folds]
    regions = [held_out_errors(rows, shrink=False) for one in checked for rows in one.regions]
    least = [one.stack.least_noise(float(level)) for one in checked for level in one.member_noise.mean(0)]
    learned, n_outputs = calibrate_groups(folds, regions, least, degrees), len(checked[0].folds)
    return [tuple(learned[start : start + n_outputs]) for start in range(0, len(learned), n_outputs)]


def _uncalibrated(trained: TrainedMembers[RegressionMembers], degrees: float | None) -> Fitted[RegressionEnsemble]:
    """An ensemble of too few rows to hold any out: members' own noise, and no inflation."""
    posterior = trained.members.posterior()
    noise = posterior.noise_variance.numpy()
    tails = degrees or max(3.0, float(posterior.t_degrees.mean()))
    calibrations = tuple(Calibration(float(level), 1.0, tails) for level in noise.mean(0))
    fields = (None,) * len(calibrations)
    ensemble = RegressionEnsemble(trained.members, InputRange.of(trained.x), noise, calibrations, fields)
    return Fitted(ensemble, trained.history, None)


def _calibrated(
    trained: TrainedMembers[RegressionMembers],
    checked: _Checked,
    calibrations: tuple[Calibration, ...],
    input_noise: bool,
    shape: str,
) -> Fitted[RegressionEnsemble]:
    """An ensemble with the noise that held-out errors show: its size at each input, and its shape."""
    scale = np.append(trained.members.features.input_scale().numpy().astype(np.float64), 1.0)
    fields: list[NoiseField | None] = []
    shapes: list[NoiseShape] = []
    for calibration, rows in zip(calibrations, checked.folds, strict=True):
        errors = held_out_errors(rows, shrink=True)
        at_rows = np.column_stack([trained.x[rows.position], rows.y - errors.error])
        field = fit_noise_field(at_rows, errors, calibration, scale, trained.rng) if input_noise else None
        fields.append(field)
        if shape != "student":
            variance = calibration.noise * (np.ones(len(at_rows)) if field is None else field.factor(at_rows))
            one = choose_shape(errors, variance, calibration, checked.fit.seed, asked=shape == "mixture")
            shapes += [one] if one is not None else []
    shaped = tuple(shapes) if len(shapes) == len(calibrations) else ()
    parts = (checked.member_noise, calibrations, tuple(fields), shaped, checked.stack)
    ensemble = RegressionEnsemble(trained.members, InputRange.of(trained.x), *parts)
    return Fitted(ensemble, trained.history, ensemble.held_out_sample(trained.x, checked.folds))

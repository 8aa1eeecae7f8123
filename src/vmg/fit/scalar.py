"""An ensemble for targets of any likelihood of one function; held-out rows calibrate it as they do for numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vmg.fit.ensemble import rows_to_condition_on, train_ensemble
from vmg.fit.scalar_calibration import ScalarCalibration, calibrate_scalar, held_out_functions
from vmg.fit.scalar_members import SETTLING_STEPS, TOLERANCE, ScalarMembers
from vmg.fit.scaling import InputRange, soften
from vmg.fit.size import Size
from vmg.likelihoods.scalar import ScalarLikelihood
from vmg.math.scalar_evidence import ScalarPosterior, settle
from vmg.nn.anchored import AnchoredFunctions
from vmg.training import Callback, History

__all__ = ["FunctionRows", "ScalarEnsemble", "fit_scalar"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class FunctionRows:
    """The function of N rows: its centre and variance, [N] each."""

    loc: Array
    variance: Array


@dataclass(frozen=True)
class ScalarEnsemble:
    """Members conditioned on all rows, with what their held-out rows said of the likelihood and of ignorance."""

    members: ScalarMembers
    mean: Tensor  # of the output weights, [E, D]
    root: Tensor  # Cholesky factor of their precision, [E, D, D]
    calibration: ScalarCalibration
    input_range: InputRange

    @cached_property
    def functions(self) -> AnchoredFunctions:
        """Functions of the members."""
        return AnchoredFunctions(self.members.features, self.mean.unsqueeze(-1), self.root)

    def predict(self, x: Array) -> FunctionRows:
        """The function at rows of inputs in standard units [N, D]."""
        soft = soften(x)
        found, own = self.functions(soft)
        centres = found[..., 0]
        between = centres.var(0, ddof=1) if len(centres) > 1 else 0.0
        variance = self.calibration.stretch * (own.mean(0) + between) * self.input_range.remoteness(soft)
        return FunctionRows(self.calibration.sharpness * centres.mean(0), variance)

    @torch.no_grad()
    def function_factor(self, x: Array) -> Array:
        """F [K, N] with FᵀF the covariance between rows of the function."""
        soft = soften(x)
        phi = self.members.features(torch.as_tensor(soft, dtype=torch.float64))
        centres = (phi @ self.mean.unsqueeze(-1)).squeeze(-1).numpy()
        half = torch.linalg.solve_triangular(self.root, phi.mT, upper=False).numpy()  # [E, D, N]
        remote = self.input_range.remoteness(soft)
        n_members = len(centres)
        between = (centres - centres.mean(0)) / math.sqrt(max(n_members - 1, 1))
        own = half.reshape(-1, half.shape[-1]) / math.sqrt(n_members)
        return np.concatenate([between, own]) * np.sqrt(self.calibration.stretch * remote)

    @torch.no_grad()
    def updated(self, x: Array, y: Array, weight: Array | None) -> ScalarEnsemble:
        """Condition the output layers on more rows, the posterior so far being their prior."""
        phi = self.members.features(torch.as_tensor(soften(x)))
        given = torch.ones(len(x), dtype=torch.float64) if weight is None else torch.as_tensor(weight)
        before = ScalarPosterior(self.mean, self.root)
        found = settle(
            before,
            phi,
            torch.as_tensor(y),
            before.natural(),
            given.expand(len(phi), -1),
            self.members.scatter,
            SETTLING_STEPS,
            TOLERANCE,
        )
        return replace(self, mean=found.mean, root=found.root.contiguous())

    def relevance(self) -> Array:
        """How strongly each input can move the first layer, [D]."""
        return self.members.features.relevance().double().numpy()


def fit_scalar(
    x: Array,
    y: Array,
    likelihood: ScalarLikelihood,
    weight: Array | None,
    *,
    size: Size,
    seed: int,
    callbacks: Sequence[Callback] = (),
) -> tuple[ScalarEnsemble, History]:
    """Fit to rows in standard units, x [N, D], and targets y [N] or [N, 2] as the likelihood takes them."""

    def make_members() -> ScalarMembers:
        return ScalarMembers(x.shape[1], size.hidden, likelihood, size.activations, size.n_members)

    single = torch.as_tensor(y, dtype=torch.float32)
    trained = train_ensemble(make_members, x, single, weight, size=size, seed=seed, callbacks=callbacks)
    members, soft, design, held = trained.members, trained.soft, trained.design, trained.held
    given = np.ones(len(x)) if weight is None else weight
    calibration = ScalarCalibration(members.theta.detach().mean(0).numpy(), 1.0, 1.0)
    if held is not None:
        remote = design.remoteness(soft)[:, held.index]
        folds, regions = (
            held_out_functions(held.predictions, held.index, design, remote, y, given, regions=kind)
            for kind in (False, True)
        )
        calibration = calibrate_scalar(likelihood, folds, regions, held.predictions.theta.mean(0))
    some, counted = rows_to_condition_on(torch.as_tensor(given), trained.generator)
    targets = torch.as_tensor(y)[some]
    posterior = members.posterior(torch.as_tensor(soft)[some], targets, counted.expand(size.n_members, -1))
    root = posterior.root.contiguous()  # as files keep it: another order of memory may give another last bit
    ensemble = ScalarEnsemble(members, posterior.mean, root, calibration, InputRange.of(soft))
    return ensemble, trained.history

"""Targets in the units that ensembles work in, and predictions in the targets' own."""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from vmg.fit.calibration import NORMAL_DEGREES
from vmg.fit.design import Standardiser
from vmg.fit.glm import ScalarEnsemble
from vmg.likelihoods.bounded import Censored
from vmg.likelihoods.families import LogNormal
from vmg.likelihoods.scalar import HEADROOM
from vmg.prediction import GLMPrediction, NumberPrediction, StudentPrediction, TransformedPrediction
from vmg.prediction.base import scaled_factor
from vmg.prediction.transformed import LogTransform, Rectified, TargetTransform

__all__ = ["UNSCALED", "before_transform", "choose_transform", "scalar_distribution"]

Array = NDArray[np.float64]

UNSCALED = Standardiser(np.zeros(1), np.ones(1))
"""Units of targets whose likelihood knows their unit."""


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


def scalar_distribution(
    ensemble: ScalarEnsemble, x: Array, transform: TargetTransform | None, *, squeeze: bool
) -> NumberPrediction:
    """Prediction of an ensemble for rows x [N, D] in standard units, in the target's own units."""
    if isinstance(ensemble.members.likelihood, Censored):
        base = _normal(ensemble, x, ensemble.members.likelihood, squeeze)
        return base if transform is None else TransformedPrediction(base, transform)
    rows = ensemble.predict(x)
    return GLMPrediction(
        rows.loc,
        np.sqrt(rows.variance),
        ensemble.members.likelihood,
        ensemble.calibration.theta,
        scaled_factor(ensemble.function_factor, x, 1.0),
        squeeze,
    )


def _normal(ensemble: ScalarEnsemble, x: Array, likelihood: Censored, squeeze: bool) -> StudentPrediction:
    """A normal distribution in closed form, for what was censored in training and will not be."""
    rows, theta, unit = ensemble.predict(x), ensemble.calibration.theta, likelihood.scale
    noise = np.sqrt(likelihood.variance(rows.loc, theta))
    return StudentPrediction(
        likelihood.mean(rows.loc, theta)[:, None],
        noise[:, None],
        unit * np.sqrt(rows.variance)[:, None],
        np.full(1, NORMAL_DEGREES),
        scaled_factor(partial(_as_output, ensemble), x, unit),
        squeeze=squeeze,
    )


def _as_output(ensemble: ScalarEnsemble, x: Array) -> Array:
    """The function's factor [K, N, 1], as of several outputs."""
    return ensemble.function_factor(x)[..., None]

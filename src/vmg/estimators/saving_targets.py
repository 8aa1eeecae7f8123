"""Ensembles of likelihoods of one function, transforms of targets and scores of candidates, as files hold them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vmg.estimators.file_checks import require_shapes
from vmg.estimators.saving_ensembles import (
    check_features,
    describe_features,
    put_members,
    put_range,
    take_members,
    take_range,
)
from vmg.fit.calibration import ScalarCalibration
from vmg.fit.glm import ScalarEnsemble, ScalarMembers
from vmg.fit.targets import MOST_LEVELS
from vmg.likelihoods.scalar import SCALAR_LIKELIHOODS, ScalarLikelihood
from vmg.prediction.transformed import LogTransform, Rectified

__all__ = [
    "decode_scalar",
    "decode_scores",
    "decode_transform",
    "encode_scalar",
    "encode_scores",
    "encode_transform",
]

Tensors = dict[str, Tensor]
Document = dict[str, Any]

TRANSFORMS: dict[str, type[LogTransform] | type[Rectified]] = {"log": LogTransform, "rectified": Rectified}
MOST_TRIALS = 1_000_000


def encode_scalar(name: str, ensemble: ScalarEnsemble, tensors: Tensors) -> Document:
    """Describe an ensemble; its numbers go to ``tensors`` under names that start with ``name``."""
    put_members(f"{name}.members", ensemble.members, tensors)
    tensors[f"{name}.mean"], tensors[f"{name}.root"] = ensemble.mean, ensemble.root
    tensors[f"{name}.theta"] = torch.from_numpy(ensemble.calibration.theta.copy())
    put_range(name, ensemble.input_range, tensors)
    likelihood = ensemble.members.likelihood
    return {
        "features": describe_features(ensemble.members.features),
        "likelihood": likelihood.name,
        "constants": likelihood.constants(),
        "sharpness": ensemble.calibration.sharpness,
        "inflation": ensemble.calibration.inflation,
    }


def decode_scalar(name: str, content: Document, tensors: Mapping[str, Tensor]) -> ScalarEnsemble:
    """The ensemble that :func:`encode_scalar` took apart."""
    described = content["features"]
    n_features = check_features(f"{name}.members.features", described, tensors)
    likelihood = _likelihood(name, content["likelihood"], content["constants"])
    n_members = described["n_members"]
    require_shapes(
        {
            f"{name}.mean": (n_members, n_features),
            f"{name}.root": (n_members, n_features, n_features),
            f"{name}.theta": (likelihood.n_parameters,),
        },
        tensors,
    )
    members = take_members(f"{name}.members", ScalarMembers, described, tensors, likelihood=likelihood)
    sharpness, inflation = float(content["sharpness"]), float(content["inflation"])
    if not (0 < sharpness < np.inf and 0 <= inflation < np.inf):
        raise ValueError(f"{name} must have positive factors of its function; got {sharpness} and {inflation}")
    theta = tensors[f"{name}.theta"].double().numpy().copy()
    weights = tensors[f"{name}.mean"].double().clone(), tensors[f"{name}.root"].double().clone()
    inputs = take_range(name, described["in_features"], tensors)
    return ScalarEnsemble(members, inputs, *weights, ScalarCalibration(theta, sharpness, inflation))


def _likelihood(name: str, kind: str, constants: Document) -> ScalarLikelihood:
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in constants.items()}
    for key, value in values.items():
        numbers = value if isinstance(value, tuple) else (value,)
        if len(numbers) > MOST_LEVELS or not all(np.isfinite(float(number)) for number in numbers):
            raise ValueError(f"{name}.{key} must be finite numbers, at most {MOST_LEVELS}; got {value!r:.40}")
        if key in ("ceiling", "scale", "trials", "shares") and not all(number > 0 for number in numbers):
            raise ValueError(f"{name}.{key} must be positive; got {value!r:.40}")
    trials = values.get("trials", 1)
    if isinstance(trials, bool) or not isinstance(trials, int) or trials > MOST_TRIALS:
        raise ValueError(f"{name}.trials must be a whole number up to {MOST_TRIALS:,}; got {trials!r:.40}")
    return SCALAR_LIKELIHOODS[kind](**values)


def encode_transform(name: str, transform: LogTransform | Rectified, tensors: Tensors) -> Document:
    """Describe a transform of the target."""
    [kind] = [key for key, cls in TRANSFORMS.items() if isinstance(transform, cls)]
    return {"kind": kind, **asdict(transform)}


def decode_transform(name: str, content: Document, tensors: Mapping[str, Tensor]) -> LogTransform | Rectified:
    """The transform that :func:`encode_transform` described."""
    values = {key: float(value) for key, value in content.items() if key != "kind"}
    if not all(np.isfinite(value) and value >= 0 for value in values.values()) or values.get("ceiling", 1.0) <= 0:
        raise ValueError(f"{name} must have finite numbers from 0 on; got {values}")
    if values.get("negative_probability", 0.0) >= 1:
        raise ValueError(f"{name}.negative_probability must be below 1; got {values['negative_probability']}")
    return TRANSFORMS[content["kind"]](**values)


def encode_scores(name: str, scores: Mapping[str, float], tensors: Tensors) -> Document:
    """Describe numbers by their names."""
    return {key: float(value) for key, value in scores.items()}


def decode_scores(name: str, content: Document, tensors: Mapping[str, Tensor]) -> dict[str, float]:
    """The numbers that :func:`encode_scores` described."""
    return {str(key): float(value) for key, value in content.items()}

"""Ensembles and transforms of targets as tensors and a JSON document, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from vmg.fit.calibration import Calibration, ScalarCalibration
from vmg.fit.classes import ClassificationEnsemble, ClassificationMembers
from vmg.fit.design import InputRange
from vmg.fit.gaussian import RegressionEnsemble, RegressionMembers
from vmg.fit.glm import ScalarEnsemble, ScalarMembers
from vmg.fit.noise import COMPONENTS, NoiseField, NoiseShape
from vmg.likelihoods.families import scalar_likelihood
from vmg.math.evidence import NoisePrior
from vmg.prediction.transformed import LogTransform, Rectified

__all__ = [
    "Document",
    "Tensors",
    "decode_classification",
    "decode_regression",
    "decode_scalar",
    "decode_scores",
    "decode_transform",
    "encode_classification",
    "encode_regression",
    "encode_scalar",
    "encode_scores",
    "encode_transform",
    "require_shapes",
    "require_size",
]

Tensors = dict[str, Tensor]
Document = dict[str, Any]
Kind = TypeVar("Kind", bound=nn.Module)

SHAPE_PARTS = ("weights", "means", "scales")
FIELD_PARTS = ("input_scale", "directions", "weights")
TRANSFORMS: dict[str, type[LogTransform] | type[Rectified]] = {"log": LogTransform, "rectified": Rectified}


# -- sizes ------------------------------------------------------------------------------------------------------------


def require_shapes(shapes: Mapping[str, tuple[int, ...]], tensors: Mapping[str, Tensor]) -> None:
    """Raise a ValueError unless each named tensor has its shape."""
    for name, shape in shapes.items():
        present = tuple(tensors[name].shape)
        if present != shape:
            raise ValueError(f"{name} must have the shape {shape}, as described; got {present}")


def require_size(name: str, value: Any) -> int:
    """The value; a ValueError unless it is a whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be a whole number of at least 1; got {value!r}")
    return value


def _check_features(name: str, described: Document, tensors: Mapping[str, Tensor]) -> int:
    """Compare described sizes with the tensors before anything of that size is made; the number of features."""
    sizes = [described["in_features"], *described["hidden"]]
    members = require_size(f"{name}.n_members", described["n_members"])
    for i, size in enumerate(sizes):
        require_size(f"{name}.layer {i}", size)
    require_shapes(
        {f"{name}.weights.{i}": (members, n_in + 1, n_out) for i, (n_in, n_out) in enumerate(pairwise(sizes))}, tensors
    )
    return (sizes[-1] if described["hidden"] else 0) + sizes[0] + 1


# -- members ----------------------------------------------------------------------------------------------------------


def _put_members(
    name: str, ensemble: RegressionEnsemble | ClassificationEnsemble | ScalarEnsemble, tensors: Tensors
) -> Document:
    """Put the numbers of members and the range of inputs into ``tensors``; the sizes of hidden layers."""
    tensors.update({f"{name}.members.{key}": value for key, value in ensemble.members.state_dict().items()})
    for end in ("low", "high"):
        tensors[f"{name}.{end}"] = torch.from_numpy(getattr(ensemble.input_range, end))
    features = ensemble.members.features
    return {
        "in_features": features.in_features,
        "hidden": list(features.hidden),
        "activations": list(features.activations),
        "n_members": features.n_members,
    }


def _take_members(
    name: str, kind: Callable[..., Kind], described: Document, tensors: Mapping[str, Tensor], **options: Any
) -> Kind:
    """New members of the described sizes, with the numbers that :func:`_put_members` put there."""
    sizes = {part: described[part] for part in ("in_features", "hidden", "activations", "n_members")}
    with torch.random.fork_rng(devices=[]):  # new members draw their start; loading leaves the caller's numbers alone
        members = kind(**sizes, **options).double()
    start = f"{name}.members."
    members.load_state_dict({key.removeprefix(start): value for key, value in tensors.items() if key.startswith(start)})
    return members.eval()


def _take_range(name: str, in_features: int, tensors: Mapping[str, Tensor]) -> InputRange:
    """The range of inputs that :func:`_put_members` put there."""
    require_shapes({f"{name}.low": (in_features,), f"{name}.high": (in_features,)}, tensors)
    return InputRange(*(tensors[f"{name}.{end}"].double().numpy().copy() for end in ("low", "high")))


def _take_posterior(
    name: str, described: Document, n_functions: tuple[int, ...], tensors: Mapping[str, Tensor]
) -> tuple[Tensor, Tensor]:
    """Mean and root of the covariance of the output layers' weights."""
    n_features, n_members = _check_features(f"{name}.members.features", described, tensors), described["n_members"]
    shapes = {"mean": (n_members, n_features, *n_functions), "root": (n_members, n_features, n_features)}
    require_shapes({f"{name}.{part}": shape for part, shape in shapes.items()}, tensors)
    return tensors[f"{name}.mean"].double().clone(), tensors[f"{name}.root"].double().clone()


def _take_factors(name: str, content: Document) -> tuple[float, float]:
    """Factors of the function and of its uncertainty."""
    sharpness, inflation = float(content["sharpness"]), float(content["inflation"])
    if not (0 < sharpness < np.inf and 0 <= inflation < np.inf):
        raise ValueError(f"{name} must have positive factors of its function; got {sharpness} and {inflation}")
    return sharpness, inflation


# -- ensembles --------------------------------------------------------------------------------------------------------


def encode_regression(name: str, ensemble: RegressionEnsemble, tensors: Tensors) -> Document:
    """Describe a regression ensemble; its numbers go to ``tensors`` under names that start with ``name``."""
    tensors[f"{name}.noise"] = torch.from_numpy(ensemble.member_noise.copy())
    for c, field in enumerate(ensemble.fields):
        if field is not None:
            for part in FIELD_PARTS:
                tensors[f"{name}.field.{c}.{part}"] = torch.from_numpy(getattr(field, part).copy())
    return {
        "features": _put_members(name, ensemble, tensors),
        "n_outputs": ensemble.members.head.n_outputs,
        "noise_prior": asdict(ensemble.members.head.noise_prior),
        "calibrations": [asdict(calibration) for calibration in ensemble.calibrations],
        "fields": [field is not None for field in ensemble.fields],
        "shapes": [{part: getattr(shape, part).tolist() for part in SHAPE_PARTS} for shape in ensemble.shapes],
    }


def decode_regression(name: str, content: Document, tensors: Mapping[str, Tensor]) -> RegressionEnsemble:
    """The ensemble that :func:`encode_regression` took apart."""
    described, n_outputs = content["features"], content["n_outputs"]
    n_features = _check_features(f"{name}.members.features", described, tensors)
    require_size(f"{name}.n_outputs", n_outputs)
    n_members = described["n_members"]
    require_shapes(
        {
            f"{name}.members.head.gram": (n_members, n_features, n_features),
            f"{name}.members.head.moment": (n_members, n_features, n_outputs),
            f"{name}.noise": (n_members, n_outputs),
        },
        tensors,
    )
    options = {"n_outputs": n_outputs, "noise_prior": NoisePrior(**content["noise_prior"])}
    members = _take_members(name, RegressionMembers, described, tensors, **options)
    if not len(content["calibrations"]) == len(content["fields"]) == n_outputs:
        raise ValueError(f"{name} must have one calibration and one noise for each of {n_outputs} outputs")
    fields = tuple(
        _field(f"{name}.field.{c}", described["in_features"], tensors) if there else None
        for c, there in enumerate(content["fields"])
    )
    calibrations = tuple(
        Calibration(**{key: float(value) for key, value in one.items()}) for one in content["calibrations"]
    )
    inputs = _take_range(name, described["in_features"], tensors)
    noise = tensors[f"{name}.noise"].double().numpy().copy()
    shapes = tuple(_shape(name, one) for one in content.get("shapes", ()))
    if len(shapes) not in (0, n_outputs):
        raise ValueError(f"{name} must have one shape of noise for each of {n_outputs} outputs or none")
    return RegressionEnsemble(members, inputs, noise, calibrations, fields, shapes)


def _shape(name: str, described: Document) -> NoiseShape:
    parts = {part: np.array(described[part], dtype=np.float64) for part in SHAPE_PARTS}
    sound = all(part.shape == (COMPONENTS,) and np.isfinite(part).all() for part in parts.values())
    if not (sound and (parts["scales"] > 0).all() and (parts["weights"] > 0).all()):
        raise ValueError(f"{name} must have a shape of noise with {COMPONENTS} components; got {described!r:.60}")
    return NoiseShape(**parts)


def _field(name: str, in_features: int, tensors: Mapping[str, Tensor]) -> NoiseField:
    parts = {part: tensors[f"{name}.{part}"].double().numpy().copy() for part in FIELD_PARTS}
    units = parts["directions"].shape[-1]
    size = in_features + 1  # the inputs and the mean
    expected = {"input_scale": (size,), "directions": (size + 1, units), "weights": (units + size + 1,)}
    require_shapes({f"{name}.{part}": shape for part, shape in expected.items()}, tensors)
    return NoiseField(**parts)


def encode_classification(name: str, ensemble: ClassificationEnsemble, tensors: Tensors) -> Document:
    """Describe a classification ensemble; its numbers go to ``tensors``."""
    tensors[f"{name}.mean"], tensors[f"{name}.root"] = ensemble.mean, ensemble.root
    return {
        "features": _put_members(name, ensemble, tensors),
        "n_classes": ensemble.members.n_classes,
        "sharpness": ensemble.sharpness,
        "inflation": ensemble.inflation,
    }


def decode_classification(name: str, content: Document, tensors: Mapping[str, Tensor]) -> ClassificationEnsemble:
    """The ensemble that :func:`encode_classification` took apart."""
    described, n_classes = content["features"], require_size(f"{name}.n_classes", content["n_classes"])
    weights = _take_posterior(name, described, (n_classes,), tensors)
    members = _take_members(name, ClassificationMembers, described, tensors, n_classes=n_classes)
    inputs = _take_range(name, described["in_features"], tensors)
    return ClassificationEnsemble(members, inputs, *weights, *_take_factors(name, content))


def encode_scalar(name: str, ensemble: ScalarEnsemble, tensors: Tensors) -> Document:
    """Describe an ensemble of one function with a likelihood; its numbers go to ``tensors``."""
    tensors[f"{name}.mean"], tensors[f"{name}.root"] = ensemble.mean, ensemble.root
    tensors[f"{name}.theta"] = torch.from_numpy(ensemble.calibration.theta.copy())
    likelihood = ensemble.members.likelihood
    return {
        "features": _put_members(name, ensemble, tensors),
        "likelihood": likelihood.name,
        "constants": likelihood.to_document(),
        "sharpness": ensemble.calibration.sharpness,
        "inflation": ensemble.calibration.inflation,
    }


def decode_scalar(name: str, content: Document, tensors: Mapping[str, Tensor]) -> ScalarEnsemble:
    """The ensemble that :func:`encode_scalar` took apart."""
    described = content["features"]
    likelihood = scalar_likelihood(content["likelihood"]).from_document(name, content["constants"])
    weights = _take_posterior(name, described, (), tensors)
    require_shapes({f"{name}.theta": (likelihood.n_parameters,)}, tensors)
    members = _take_members(name, ScalarMembers, described, tensors, likelihood=likelihood)
    theta = tensors[f"{name}.theta"].double().numpy().copy()
    inputs = _take_range(name, described["in_features"], tensors)
    return ScalarEnsemble(members, inputs, *weights, ScalarCalibration(theta, *_take_factors(name, content)))


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

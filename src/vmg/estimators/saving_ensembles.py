"""Ensembles of the collapsed core as tensors and a JSON document, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from vmg.estimators.file_checks import require_shapes, require_size
from vmg.fit.calibration import Calibration
from vmg.fit.classes import ClassificationEnsemble, ClassificationMembers
from vmg.fit.design import InputRange
from vmg.fit.gaussian import RegressionEnsemble, RegressionMembers
from vmg.fit.noise import COMPONENTS, NoiseField, NoiseShape
from vmg.math.evidence import NoisePrior
from vmg.nn.anchored import AnchoredFeatures

__all__ = [
    "check_features",
    "decode_classification",
    "decode_regression",
    "describe_features",
    "encode_classification",
    "encode_regression",
    "put_members",
    "put_range",
    "take_members",
    "take_range",
]

Tensors = dict[str, Tensor]
Document = dict[str, Any]
Kind = TypeVar("Kind", bound=nn.Module)

SHAPE_PARTS = ("weights", "means", "scales")
FIELD_PARTS = ("input_scale", "directions", "weights")


def encode_regression(name: str, ensemble: RegressionEnsemble, tensors: Tensors) -> Document:
    """Describe a regression ensemble; its numbers go to ``tensors`` under names that start with ``name``."""
    put_members(f"{name}.members", ensemble.members, tensors)
    tensors[f"{name}.noise"] = torch.from_numpy(ensemble.member_noise.copy())
    put_range(name, ensemble.input_range, tensors)
    for c, field in enumerate(ensemble.fields):
        if field is not None:
            for part in FIELD_PARTS:
                tensors[f"{name}.field.{c}.{part}"] = torch.from_numpy(getattr(field, part).copy())
    return {
        "features": describe_features(ensemble.members.features),
        "n_outputs": ensemble.members.head.n_outputs,
        "noise_prior": asdict(ensemble.members.head.noise_prior),
        "calibrations": [asdict(calibration) for calibration in ensemble.calibrations],
        "fields": [field is not None for field in ensemble.fields],
        "shapes": [{part: getattr(shape, part).tolist() for part in SHAPE_PARTS} for shape in ensemble.shapes],
    }


def decode_regression(name: str, content: Document, tensors: Mapping[str, Tensor]) -> RegressionEnsemble:
    """The ensemble that :func:`encode_regression` took apart."""
    described, n_outputs = content["features"], content["n_outputs"]
    n_features = check_features(f"{name}.members.features", described, tensors)
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
    members = take_members(f"{name}.members", RegressionMembers, described, tensors, **options)
    if not len(content["calibrations"]) == len(content["fields"]) == n_outputs:
        raise ValueError(f"{name} must have one calibration and one noise for each of {n_outputs} outputs")
    fields = tuple(
        _field(f"{name}.field.{c}", described["in_features"], tensors) if there else None
        for c, there in enumerate(content["fields"])
    )
    calibrations = tuple(
        Calibration(**{key: float(value) for key, value in one.items()}) for one in content["calibrations"]
    )
    inputs = take_range(name, described["in_features"], tensors)
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
    put_members(f"{name}.members", ensemble.members, tensors)
    tensors[f"{name}.mean"], tensors[f"{name}.root"] = ensemble.mean, ensemble.root
    put_range(name, ensemble.input_range, tensors)
    return {
        "features": describe_features(ensemble.members.features),
        "n_classes": ensemble.members.n_classes,
        "sharpness": ensemble.sharpness,
        "inflation": ensemble.inflation,
    }


def decode_classification(name: str, content: Document, tensors: Mapping[str, Tensor]) -> ClassificationEnsemble:
    """The ensemble that :func:`encode_classification` took apart."""
    described, n_classes = content["features"], content["n_classes"]
    n_features = check_features(f"{name}.members.features", described, tensors)
    require_size(f"{name}.n_classes", n_classes)
    n_members = described["n_members"]
    require_shapes(
        {
            f"{name}.mean": (n_members, n_features, n_classes),
            f"{name}.root": (n_members, n_features, n_features),
        },
        tensors,
    )
    members = take_members(f"{name}.members", ClassificationMembers, described, tensors, n_classes=n_classes)
    weights = tensors[f"{name}.mean"].double().clone(), tensors[f"{name}.root"].double().clone()
    sharpness, inflation = float(content["sharpness"]), float(content["inflation"])
    if not (0 < sharpness < np.inf and 0 <= inflation < np.inf):
        raise ValueError(f"{name} must have positive factors of its logits; got {sharpness} and {inflation}")
    inputs = take_range(name, described["in_features"], tensors)
    return ClassificationEnsemble(members, inputs, *weights, sharpness, inflation)


def put_range(name: str, inputs: InputRange, tensors: Tensors) -> None:
    """Put the range of inputs into ``tensors``."""
    tensors[f"{name}.low"], tensors[f"{name}.high"] = torch.from_numpy(inputs.low), torch.from_numpy(inputs.high)


def take_range(name: str, in_features: int, tensors: Mapping[str, Tensor]) -> InputRange:
    """The range of inputs that :func:`put_range` put there."""
    require_shapes({f"{name}.low": (in_features,), f"{name}.high": (in_features,)}, tensors)
    return InputRange(*(tensors[f"{name}.{end}"].double().numpy().copy() for end in ("low", "high")))


def describe_features(features: AnchoredFeatures) -> Document:
    """The sizes of hidden layers."""
    return {
        "in_features": features.in_features,
        "hidden": list(features.hidden),
        "activations": list(features.activations),
        "n_members": features.n_members,
    }


def check_features(name: str, described: Document, tensors: Mapping[str, Tensor]) -> int:
    """Compare described sizes with the tensors before anything of that size is made; the number of features."""
    sizes = [described["in_features"], *described["hidden"]]
    members = require_size(f"{name}.n_members", described["n_members"])
    for i, size in enumerate(sizes):
        require_size(f"{name}.layer {i}", size)
    require_shapes(
        {f"{name}.weights.{i}": (members, n_in + 1, n_out) for i, (n_in, n_out) in enumerate(pairwise(sizes))}, tensors
    )
    return (sizes[-1] if described["hidden"] else 0) + sizes[0] + 1


def put_members(name: str, module: nn.Module, tensors: Tensors) -> None:
    """Put the numbers of members into ``tensors``."""
    tensors.update({f"{name}.{key}": value for key, value in module.state_dict().items()})


def take_members(
    name: str, kind: Callable[..., Kind], described: Document, tensors: Mapping[str, Tensor], **options: Any
) -> Kind:
    """New members of the described sizes, with the numbers that :func:`put_members` put there."""
    sizes = {part: described[part] for part in ("in_features", "hidden", "activations", "n_members")}
    with torch.random.fork_rng(devices=[]):  # new members draw their start; loading leaves the caller's numbers alone
        members = kind(**sizes, **options).double()
    own = {key.removeprefix(f"{name}."): value for key, value in tensors.items() if key.startswith(f"{name}.")}
    members.load_state_dict(own)
    return members.eval()

"""Checks of what a model file says of itself, before a model is built from it, and of the model after.

A file may come from anywhere. Its document could describe a layer of any size in a few characters, so sizes count only
where the tensors of the file, whose bytes are there, have them too.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import is_regressor
from torch import Tensor

from vmg.nn.layer_parameters import FAMILIES

__all__ = [
    "MAX_DRAWS",
    "check_answers",
    "check_layer",
    "check_likelihood",
    "check_parameters",
    "read_array",
    "require_shapes",
    "require_sizes",
]

MAX_DRAWS = 10_000
"""Posterior draws of a saved model; a prediction takes time and memory in proportion."""

REQUIRED = ("n_features_in_", "input_scaling_", "history_", "seed_")
"""Fitted attributes of every estimator; what else is missing shows in a prediction."""

MAX_ARRAY_BYTES = 2**26
"""Most bytes of all classes, or all names of features."""


def check_parameters(parameters: Mapping[str, Any]) -> None:
    """Raise a ValueError where a parameter would make every prediction endless."""
    n_draws = parameters.get("n_draws", 1)
    if isinstance(n_draws, bool) or not isinstance(n_draws, int | np.integer) or not 1 <= n_draws <= MAX_DRAWS:
        raise ValueError(f"n_draws must be a whole number from 1 to {MAX_DRAWS:,} in a saved model; got {n_draws!r}")


def check_layer(name: str, layer: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Raise a ValueError unless the layer's tensors have the sizes that its description gives."""
    batch = tuple(_size(f"{name}.batch_shape", size) for size in layer["batch_shape"])
    n_rows = _size(f"{name}.in_features", layer["in_features"]) + bool(layer["bias"])
    n_columns = _size(f"{name}.out_features", layer["out_features"])
    expected: dict[str, tuple[int, ...]] = {}
    if not layer["zero_mean"]:
        expected["loc"] = (*batch, n_rows, n_columns)
    if layer["n_pseudo"] != 0:
        points = _size(f"{name}.n_pseudo", layer["n_pseudo"])
        expected["pseudo_data.points"] = (*batch, points, n_rows + n_columns)
    for side, size in (("row", n_rows), ("column", n_columns)):
        with torch.device("meta"):  # shapes without numbers
            parameters = FAMILIES[layer[f"{side}_covariance"]](size, batch)
        expected |= {f"{side}.{key}": tuple(value.shape) for key, value in parameters.state_dict().items()}
    for key, shape in expected.items():
        _require_shape(f"{name}.{key}", shape, tensors)


def check_likelihood(name: str, content: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Raise a ValueError unless the likelihood's tensors have as many outputs as its description."""
    if "n_outputs" in content:
        n_outputs = _size(f"{name}.n_outputs", content["n_outputs"])
        batch = tuple(tensors[f"{name}.prior_rate"].shape[:-1])
        _require_shape(f"{name}.prior_rate", (*batch, n_outputs), tensors)


def require_shapes(shapes: Mapping[str, tuple[int, ...]], tensors: Mapping[str, Tensor]) -> None:
    """Raise a ValueError unless each named tensor has its shape."""
    for name, shape in shapes.items():
        _require_shape(name, shape, tensors)


def require_sizes(name: str, sizes: Mapping[str, Any]) -> None:
    """Raise a ValueError unless every size is a whole number of at least 1."""
    for key, value in sizes.items():
        _size(f"{name}.{key}", value)


def read_array(name: str, dtype: np.dtype[Any], items: list[Any]) -> NDArray[Any]:
    """An array of texts or objects; a ValueError where its type is too wide, too narrow or another kind of thing."""
    if dtype.kind not in "USO" or dtype.shape or dtype.itemsize * len(items) > MAX_ARRAY_BYTES:
        raise ValueError(f"{name} must be texts of at most {MAX_ARRAY_BYTES:,} bytes; got the type {dtype.str}")
    array = np.array(items, dtype=dtype)
    if array.tolist() != items:
        raise ValueError(f"{name} must have a type that holds its items; got {dtype.str}")
    return array


def check_answers(estimator: Any) -> None:
    """Raise a ValueError unless the estimator predicts a row; other errors say themselves what is amiss."""
    missing = [name for name in REQUIRED if not hasattr(estimator, name)]
    if is_regressor(estimator):
        missing += [name for name in ("conformal_scores_", "conformal_groups_") if not hasattr(estimator, name)]
    if missing:
        raise ValueError(f"a fitted {type(estimator).__name__} must have {', '.join(missing)}")
    n_features = _size("n_features_in_", estimator.n_features_in_)
    scaled = estimator.input_scaling_.mean.shape
    if scaled != (n_features,):
        raise ValueError(f"n_features_in_ must fit the inputs' scaling, of shape {scaled}; got {n_features}")
    names = getattr(estimator, "feature_names_in_", None)
    if names is not None and np.shape(names) != (n_features,):
        raise ValueError(f"feature_names_in_ must be {n_features} names; got shape {np.shape(names)}")
    scores = getattr(estimator, "conformal_scores_", None)
    if scores is not None and not (isinstance(scores, np.ndarray) and scores.ndim > 0):
        raise ValueError(f"conformal_scores_ must be an array; got {scores!r:.40}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a row without names, or far from all others
        predicted = np.asarray(estimator.predict(np.zeros((1, n_features))))
    if len(predicted) != 1:
        raise ValueError(f"one row must get one prediction; got {len(predicted)}")


def _size(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be a whole number of at least 1; got {value!r}")
    return value


def _require_shape(name: str, shape: tuple[int, ...], tensors: Mapping[str, Tensor]) -> None:
    found = tuple(tensors[name].shape)
    if found != shape:
        raise ValueError(f"{name} must have the shape {shape}, as described; got {found}")

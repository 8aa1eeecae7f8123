"""Fitted estimators as tensors and a JSON document, and back: what a model file holds.

Every attribute of an estimator is written by its type, so that a new fitted attribute is saved without a change here,
or refused with its name. A file may come from anywhere. Its document could describe a layer of any size in a few
characters, so sizes count only where the tensors of the file, whose bytes are there, have them too.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import astuple
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from torch import Tensor

from vmg.estimators.ensemble_documents import (
    Document,
    Tensors,
    decode_classification,
    decode_regression,
    decode_scalar,
    decode_scores,
    decode_transform,
    encode_classification,
    encode_regression,
    encode_scalar,
    encode_scores,
    encode_transform,
    require_size,
)
from vmg.estimators.table_inputs import TableInputs
from vmg.fit.classes import ClassificationEnsemble
from vmg.fit.design import Standardiser
from vmg.fit.gaussian import RegressionEnsemble
from vmg.fit.glm import ScalarEnsemble
from vmg.model_file import ModelFileError
from vmg.prediction.transformed import LogTransform, Rectified
from vmg.training import History, Progress

__all__ = ["CODECS", "MAX_ARRAY_BYTES", "MAX_DRAWS", "Codec", "Document", "Tensors", "from_document", "to_document"]

Estimator = TypeVar("Estimator", bound=BaseEstimator)

MAX_DRAWS = 10_000
"""Posterior draws of a saved model; a prediction takes time and memory in proportion."""

MAX_ARRAY_BYTES = 2**26
"""Most bytes of all classes, or all names of features."""

SAVED = ("TableClassifier", "TableRegressor", "VMGClassifier", "VMGRegressor")
"""Estimators that :func:`vmg.load` knows."""

REQUIRED = ("n_features_in_", "input_scaling_", "history_", "seed_", "conformal_scores_", "conformal_groups_")
"""Fitted attributes of every estimator; what else is missing shows in a prediction."""


class Codec(NamedTuple):
    """How values of one type are written and read."""

    tag: str
    encode: Callable[[str, Any, Tensors], Document]
    decode: Callable[[str, Document, Mapping[str, Tensor]], Any]


def to_document(estimator: BaseEstimator, codecs: Mapping[type[Any], Codec]) -> tuple[Tensors, Document]:
    """Everything that a fitted estimator consists of."""
    if type(estimator).__name__ not in SAVED:
        raise ModelFileError(f"only {' and '.join(SAVED)} can be saved; got {type(estimator).__name__}")
    parameters = estimator.get_params(deep=False)
    try:
        _check_parameters(parameters)
    except ValueError as error:
        raise ModelFileError(str(error)) from error
    tensors: Tensors = {}
    attributes = {
        name: _encode(name, value, tensors, codecs) for name, value in vars(estimator).items() if name not in parameters
    }
    document = {
        "holds": type(estimator).__name__,
        "parameters": {name: _encode_parameter(name, value) for name, value in parameters.items()},
        "attributes": attributes,
    }
    return tensors, document


def from_document(
    kind: type[Estimator], tensors: Mapping[str, Tensor], document: Document, codecs: Mapping[type[Any], Codec]
) -> Estimator:
    """The estimator that :func:`to_document` took apart."""
    decoders = {codec.tag: codec.decode for codec in codecs.values()}
    try:
        if document["holds"] != kind.__name__:
            raise ValueError(f"the document must hold a {kind.__name__}; got {document['holds']!r:.40}")
        parameters = {name: _decode_parameter(value) for name, value in document["parameters"].items()}
        _check_parameters(parameters)
        estimator = kind(**parameters)
        for name, value in document["attributes"].items():
            if name in parameters or hasattr(kind, name) or name.startswith("__"):
                raise ValueError(f"{name} must not be a fitted attribute")
            if isinstance(value, dict):
                [(tag, content)] = value.items()
                value = decoders[tag](name, content, tensors)
            setattr(estimator, name, value)
        _check_answers(estimator)
    except ModelFileError:
        raise
    except Exception as error:  # a document may be wrong in any way
        raise ModelFileError(f"the file does not describe a whole model: {type(error).__name__}: {error}") from error
    return estimator


# -- parameters -------------------------------------------------------------------------------------------------------


def _encode_parameter(name: str, value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, tuple | list):
        return [_encode_parameter(name, item) for item in value]
    if isinstance(value, dict):  # JSON has texts alone for keys
        return {"pairs": [[_encode_parameter(name, part) for part in pair] for pair in value.items()]}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.random.RandomState):
        hint = "it is not needed after the fit: call set_params(random_state=None) before saving"
    elif callable(value):
        hint = "code is never saved: use one of the activations that have a name"
    else:
        hint = "use numbers, strings or sequences of them"
    raise ModelFileError(f"{name}={value!r} cannot be saved; {hint}")


def _decode_parameter(value: Any) -> Any:
    if isinstance(value, dict):
        return {_decode_parameter(key): _decode_parameter(item) for key, item in value["pairs"]}
    return tuple(_decode_parameter(item) for item in value) if isinstance(value, list) else value


def _check_parameters(parameters: Mapping[str, Any]) -> None:
    """Raise a ValueError where a parameter would make every prediction endless."""
    n_draws = parameters.get("n_draws", 1)
    if isinstance(n_draws, bool) or not isinstance(n_draws, int | np.integer) or not 1 <= n_draws <= MAX_DRAWS:
        raise ValueError(f"n_draws must be a whole number from 1 to {MAX_DRAWS:,} in a saved model; got {n_draws!r}")


# -- fitted attributes ------------------------------------------------------------------------------------------------


def _encode(name: str, value: Any, tensors: Tensors, codecs: Mapping[type[Any], Codec]) -> Any:
    """A JSON value for ``value``; its arrays go to ``tensors`` under names that start with ``name``."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return value.item()
    for kind, codec in codecs.items():
        if isinstance(value, kind):
            return {codec.tag: codec.encode(name, value, tensors)}
    raise ModelFileError(f"{name} of type {type(value).__name__} cannot be saved")


def _encode_array(name: str, array: NDArray[Any], tensors: Tensors) -> Document:
    if array.dtype.kind in "biuf":
        tensors[name] = torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("=")))
        return {}
    items = array.tolist()
    if array.ndim != 1 or not all(isinstance(item, bool | int | float | str) for item in items):
        raise ModelFileError(f"{name} of type {array.dtype} cannot be saved; use numbers or strings")
    return {"items": items, "dtype": array.dtype.str}


def _decode_array(name: str, content: Document, tensors: Mapping[str, Tensor]) -> NDArray[Any]:
    """An array of numbers, texts or objects; a ValueError where its type is too wide, too narrow or another kind."""
    if not content:
        return tensors[name].numpy().copy()
    dtype, items = np.dtype(content["dtype"]), list(content["items"])
    if dtype.kind not in "USO" or dtype.shape or dtype.itemsize * len(items) > MAX_ARRAY_BYTES:
        raise ValueError(f"{name} must be texts of at most {MAX_ARRAY_BYTES:,} bytes; got the type {dtype.str}")
    array = np.array(items, dtype=dtype)
    if array.tolist() != items:
        raise ValueError(f"{name} must have a type that holds its items; got {dtype.str}")
    return array


def _encode_scaling(name: str, scaling: Standardiser, tensors: Tensors) -> Document:
    return {part: _encode_array(f"{name}.{part}", getattr(scaling, part), tensors) for part in ("mean", "scale")}


def _decode_scaling(name: str, content: Document, tensors: Mapping[str, Tensor]) -> Standardiser:
    scaling = Standardiser(**{part: _decode_array(f"{name}.{part}", value, tensors) for part, value in content.items()})
    if not (np.isfinite(scaling.mean).all() and np.isfinite(scaling.scale).all() and (scaling.scale > 0).all()):
        raise ValueError(f"{name} must have finite means and positive scales")
    return scaling


def _encode_history(name: str, history: History, tensors: Tensors) -> Document:
    records = [astuple(record) for record in history.records]
    tensors[name] = torch.tensor(records, dtype=torch.float64)  # whole numbers of steps stay exact
    return {"stopped": history.stopped, "notes": list(history.notes)}


def _decode_history(name: str, content: Document, tensors: Mapping[str, Tensor]) -> History:
    records = [Progress(int(step), int(n_steps), *rest) for step, n_steps, *rest in tensors[name].tolist()]
    return History(records, content["stopped"], tuple(str(note) for note in content["notes"]))


def _encode_inputs(name: str, inputs: TableInputs, tensors: Tensors) -> Document:
    own, document = inputs.to_document()
    tensors.update({f"{name}.{key}": value for key, value in own.items()})
    return document


def _decode_inputs(name: str, content: Document, tensors: Mapping[str, Tensor]) -> TableInputs:
    own = {key.removeprefix(f"{name}."): value for key, value in tensors.items() if key.startswith(f"{name}.")}
    return TableInputs.from_document(own, content)


def _check_answers(estimator: Any) -> None:
    """Raise a ValueError unless the estimator predicts a row; other errors say themselves what is amiss."""
    missing = [name for name in REQUIRED if not hasattr(estimator, name)]
    if missing:
        raise ValueError(f"a fitted {type(estimator).__name__} must have {', '.join(missing)}")
    n_features = require_size("n_features_in_", estimator.n_features_in_)
    names, inputs = (getattr(estimator, name, None) for name in ("feature_names_in_", "inputs_"))
    width = n_features if inputs is None else int(inputs.encoder.widths.sum())
    scaled = estimator.input_scaling_.mean.shape
    if scaled != (width,):
        raise ValueError(f"n_features_in_ must fit the inputs' scaling, of shape {scaled}; got {width}")
    if names is not None and np.shape(names) != (n_features,):
        raise ValueError(f"feature_names_in_ must be {n_features} names; got shape {np.shape(names)}")
    scores = getattr(estimator, "conformal_scores_", None)
    if scores is not None and not (isinstance(scores, np.ndarray) and scores.ndim > 0):
        raise ValueError(f"conformal_scores_ must be an array; got {scores!r:.40}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a row without names, or far from all others
        row: Any = np.zeros((1, n_features))
        if inputs is not None and not inputs.plain:  # a row without a value
            row = (
                np.full((1, n_features), None) if names is None else pd.DataFrame([[None] * n_features], columns=names)
            )
        predicted = np.asarray(estimator.predict(row))
    if len(predicted) != 1:
        raise ValueError(f"one row must get one prediction; got {len(predicted)}")


CODECS: dict[type[Any], Codec] = {
    np.ndarray: Codec("array", _encode_array, _decode_array),
    Standardiser: Codec("standardiser", _encode_scaling, _decode_scaling),
    History: Codec("history", _encode_history, _decode_history),
    RegressionEnsemble: Codec("regression", encode_regression, decode_regression),
    ClassificationEnsemble: Codec("classification", encode_classification, decode_classification),
    ScalarEnsemble: Codec("scalar", encode_scalar, decode_scalar),
    LogTransform: Codec("transform", encode_transform, decode_transform),
    Rectified: Codec("transform", encode_transform, decode_transform),
    TableInputs: Codec("inputs", _encode_inputs, _decode_inputs),
    dict: Codec("scores", encode_scores, decode_scores),
}

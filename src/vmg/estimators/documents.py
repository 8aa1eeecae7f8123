"""Fitted estimators as tensors and a JSON document, and back: what a model file holds.

Every attribute of an estimator is written by its type, so that a new fitted attribute is saved without a change here,
or refused with its name. A file may come from anywhere. Its document could describe a layer of any size in a few
characters, so sizes count only where the tensors of the file, whose bytes are there, have them too.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from torch import Tensor, nn

from vmg.fit.boosted_trees import BoostedTrees
from vmg.fit.calibration import Calibration, Factors
from vmg.fit.classes import ClassificationEnsemble, ClassificationMembers
from vmg.fit.design import InputRange, Standardiser
from vmg.fit.gaussian import RegressionEnsemble, RegressionMembers
from vmg.fit.gaussian_process import GaussianProcess, Kernel
from vmg.fit.glm import ScalarEnsemble, ScalarMembers
from vmg.fit.noise import NoiseField
from vmg.fit.stacking import Stack
from vmg.fit.trainer import Members
from vmg.likelihoods.families import scalar_likelihood
from vmg.likelihoods.scalar import ScalarLikelihood
from vmg.math.evidence import NoisePrior
from vmg.model_file import Document, ModelFileError, Tensors, from_fields, stripped
from vmg.prediction.transformed import LogTransform, Rectified
from vmg.tables.inputs import TableInputs
from vmg.training import History, Progress

__all__ = ["MAX_ARRAY_BYTES", "decode_attributes", "encode_attributes", "from_document", "to_document"]

Estimator = TypeVar("Estimator", bound=BaseEstimator)

MAX_ARRAY_BYTES = 2**26
"""Most bytes of all classes, or all names of features."""

SAVED = ("TableClassifier", "TableRegressor", "VMGClassifier", "VMGRegressor")
"""Estimators that :func:`vmg.load` knows."""

PAIRS = "pairs"  # tag of a mapping

REQUIRED = ("n_features_in_", "input_scaling_", "history_", "seed_", "conformal_scores_", "conformal_groups_")
"""Fitted attributes of every estimator; what else is missing shows in a prediction."""


class Codec(NamedTuple):
    """How values of some types are written and read; a tensor whose name is empty has that of the attribute."""

    kind: type[Any]
    encode: Callable[[Any], tuple[Tensors, Document]]
    decode: Callable[[Tensors, Document], Any]


def to_document(estimator: BaseEstimator) -> tuple[Tensors, Document]:
    """Everything that a fitted estimator consists of."""
    if type(estimator).__name__ not in SAVED:
        raise ModelFileError(f"only {' and '.join(SAVED)} can be saved; got {type(estimator).__name__}")
    try:
        estimator._validate_params()
    except ValueError as error:
        raise ModelFileError(f"the estimator cannot be saved: {error}") from error
    parameters = estimator.get_params(deep=False)
    plain = {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in parameters.items()}
    document = {
        "holds": type(estimator).__name__,
        "parameters": {name: _encode(name, value, None) for name, value in plain.items()},
    }
    tensors, attributes = encode_attributes(estimator)
    return tensors, {**document, "attributes": attributes}


def encode_attributes(estimator: BaseEstimator) -> tuple[Tensors, Document]:
    """Everything that ``fit`` left in an estimator."""
    tensors: Tensors = {}
    fitted = {name: value for name, value in vars(estimator).items() if name not in estimator.get_params(deep=False)}
    return tensors, {name: _encode(name, value, tensors) for name, value in fitted.items()}


def decode_attributes(estimator: Any, tensors: Mapping[str, Tensor], attributes: Document) -> None:
    """Set the attributes that :func:`encode_attributes` took apart."""
    for name, value in attributes.items():
        if name in estimator.get_params(deep=False) or hasattr(type(estimator), name) or name.startswith("__"):
            raise ValueError(f"{name} must not be a fitted attribute")
        setattr(estimator, name, _decode(name, value, tensors))
    estimator.rebuild()


def from_document(kind: type[Estimator], tensors: Mapping[str, Tensor], document: Document) -> Estimator:
    """The estimator that :func:`to_document` took apart."""
    try:
        if document["holds"] != kind.__name__:
            raise ValueError(f"the document must hold a {kind.__name__}; got {document['holds']!r:.40}")
        parameters = {name: _decode(name, value, {}) for name, value in document["parameters"].items()}
        estimator = kind(**parameters)
        estimator._validate_params()
        decode_attributes(estimator, tensors, document["attributes"])
        _check_answers(estimator)
    except ModelFileError:
        raise
    except Exception as error:  # a document may be wrong in any way
        raise ModelFileError(f"the file does not describe a whole model: {type(error).__name__}: {error}") from error
    return estimator


# -- values ----------------------------------------------------------------------------------------------------------


def _encode(name: str, value: Any, tensors: Tensors | None) -> Any:
    """A JSON value for ``value``; its arrays go to ``tensors`` under names that start with ``name``, unless None."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, tuple | list):
        return [_encode(f"{name}.{k}", item, tensors) for k, item in enumerate(value)]
    if isinstance(value, dict):  # JSON has texts alone for keys
        return {PAIRS: [[_encode(name, part, tensors) for part in pair] for pair in value.items()]}
    tag = type(value).__name__
    if tensors is not None and PARTS.get(tag) is type(value):
        parts = {field.name: getattr(value, field.name) for field in fields(value)}
        return {tag: {key: _encode(f"{name}.{key}", part, tensors) for key, part in parts.items()}}
    for tag, codec in CODECS.items() if tensors is not None else ():
        if isinstance(value, codec.kind):
            try:
                own, document = codec.encode(value)
            except ModelFileError as error:
                raise ModelFileError(f"{name} cannot be saved: {error}") from error
            tensors.update({f"{name}.{key}" if key else name: tensor for key, tensor in own.items()})  # type: ignore[union-attr]
            return {tag: document}
    if isinstance(value, np.random.RandomState):
        raise ModelFileError(f"{name}={value!r} cannot be saved: call set_params(random_state=None) after the fit")
    hint = "code is never saved" if callable(value) else "use numbers, strings or sequences of them"
    raise ModelFileError(f"{name} of type {type(value).__name__} cannot be saved; {hint}")


def _decode(name: str, value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The value that :func:`_encode` took apart; other errors than of a model file get its name."""
    if isinstance(value, list):
        return tuple(_decode(f"{name}.{k}", item, tensors) for k, item in enumerate(value))
    if not isinstance(value, dict):
        return value
    [(tag, document)] = value.items()
    if tag == PAIRS:
        return {_decode(name, key, {}): _decode(name, item, tensors) for key, item in document}
    if tag in PARTS:
        return from_fields(PARTS[tag], {key: _decode(f"{name}.{key}", part, tensors) for key, part in document.items()})
    own = stripped(f"{name}.", tensors)
    try:
        return CODECS[tag].decode(own | ({"": tensors[name]} if name in tensors else {}), document)
    except Exception as error:  # a document may be wrong in any way
        raise ValueError(f"{name}: {type(error).__name__}: {error}") from error


def _encode_array(array: NDArray[Any]) -> tuple[Tensors, Document]:
    if array.dtype.kind in "biuf":
        return {"": torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("=")))}, {}
    items = array.tolist()
    if array.ndim != 1 or not all(isinstance(item, bool | int | float | str) for item in items):
        raise ModelFileError(f"its type is {array.dtype}; use numbers or strings")
    return {}, {"items": items, "dtype": array.dtype.str}


def _decode_array(tensors: Tensors, document: Document) -> NDArray[Any]:
    """An array of numbers, texts or objects; a ValueError where its type is too wide, too narrow or another kind."""
    if not document:
        return tensors[""].numpy().copy()
    dtype, items = np.dtype(document["dtype"]), list(document["items"])
    if dtype.kind not in "USO" or dtype.shape or dtype.itemsize * len(items) > MAX_ARRAY_BYTES:
        raise ValueError(f"must be texts of at most {MAX_ARRAY_BYTES:,} bytes; got the type {dtype.str}")
    array = np.array(items, dtype=dtype)
    if array.tolist() != items:
        raise ValueError(f"must have a type that holds its items; got {dtype.str}")
    return array


def _encode_members(members: Members) -> tuple[Tensors, Document]:
    made_with = {name: _encode(name, value, {}) for name, value in members.made_with.items()}
    return members.state_dict(), {"kind": type(members).__name__, "made_with": made_with}


def _decode_members(tensors: Tensors, document: Document) -> Members:
    made_with = {name: _decode(name, value, {}) for name, value in document["made_with"].items()}
    return MEMBERS[document["kind"]].from_state(tensors, made_with)


def _check_answers(estimator: Any) -> None:
    """Raise a ValueError unless the estimator predicts a row; other errors say themselves what is amiss."""
    missing = [name for name in REQUIRED if not hasattr(estimator, name)]
    if missing:
        raise ValueError(f"a fitted {type(estimator).__name__} must have {', '.join(missing)}")
    n_features = estimator.n_features_in_
    if type(n_features) is not int or n_features < 1:
        raise ValueError(f"n_features_in_ must be a whole number of at least 1; got {n_features!r}")
    names, inputs = (getattr(estimator, name, None) for name in ("feature_names_in_", "inputs_"))
    width = n_features if inputs is None or inputs.plain else int(inputs.encoder.widths.sum())
    for scaling in (estimator.input_scaling_, getattr(estimator, "target_scaling_", estimator.input_scaling_)):
        if not (np.isfinite(scaling.mean).all() and np.isfinite(scaling.scale).all() and (scaling.scale > 0).all()):
            raise ValueError("scalings must have finite means and positive scales")
    scaled = estimator.input_scaling_.mean.shape
    if scaled != (width,):
        raise ValueError(f"n_features_in_ must fit the inputs' scaling, of shape {scaled}; got {width}")
    if inputs is not None:
        most = len(inputs.encoder.columns) + len(inputs.encoder.dropped) + len(estimator.ignore or ())
        if n_features > most:
            raise ValueError(f"n_features_in_ must be at most the {most} columns of the inputs; got {n_features}")
    if names is not None and np.shape(names) != (n_features,):
        raise ValueError(f"feature_names_in_ must be {n_features} names; got shape {np.shape(names)}")
    scores = getattr(estimator, "conformal_scores_", None)
    if scores is not None and not (isinstance(scores, np.ndarray) and scores.ndim > 0):
        raise ValueError(f"conformal_scores_ must be an array; got {scores!r:.40}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a row without names, or far from all others
        # of a table that is not of numbers alone, a row without a value
        cell = 0.0 if inputs is None or inputs.plain else None
        row = pd.DataFrame([[cell] * n_features], columns=names)
        predicted = np.asarray(estimator.predict(row))
    if len(predicted) != 1:
        raise ValueError(f"one row must get one prediction; got {len(predicted)}")


PARTS: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (
        *(RegressionEnsemble, ScalarEnsemble, ClassificationEnsemble, InputRange, NoiseField, NoisePrior),
        *(Calibration, Factors, Stack, GaussianProcess, Kernel, BoostedTrees, Standardiser, LogTransform, Rectified),
        *(History, Progress),
    )
}
"""Dataclasses that are written field by field, and check themselves that these fit together."""

MEMBERS: dict[str, type[Members]] = {
    kind.__name__: kind for kind in (RegressionMembers, ScalarMembers, ClassificationMembers)
}

CODECS: dict[str, Codec] = {
    "array": Codec(np.ndarray, _encode_array, _decode_array),
    "tensor": Codec(Tensor, lambda tensor: ({"": tensor}, {}), lambda tensors, _: tensors[""].double().clone()),
    "inputs": Codec(TableInputs, TableInputs.to_document, TableInputs.from_document),
    "likelihood": Codec(
        ScalarLikelihood,
        lambda one: ({}, {"name": one.name, "constants": asdict(one)}),
        lambda _, document: scalar_likelihood(document["name"]).from_document("constants", document["constants"]),
    ),
    "members": Codec(Members, _encode_members, _decode_members),
    "module": Codec(nn.Module, lambda module: (module.state_dict(), {}), lambda tensors, _: tensors),
}
"""How fitted attributes are written and read; a module is read as tensors, which the estimator gives to a new one."""

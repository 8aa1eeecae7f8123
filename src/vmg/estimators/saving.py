"""Fitted estimators as tensors and a JSON document, and back: what a model file holds.

Every attribute of the estimator is written by its type, so that a new fitted attribute is saved without a change
here, or refused with its name. Networks and likelihoods are described by their own options, not by the estimator's
parameters: those may have been changed since the fit.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import astuple
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from vmg.estimators.base import TableEstimator
from vmg.estimators.classifier import TableClassifier
from vmg.estimators.file_checks import (
    check_answers,
    check_layer,
    check_likelihood,
    check_parameters,
    read_array,
)
from vmg.estimators.network import NetworkEstimator
from vmg.estimators.pseudo_data.classifier import VMGClassifier
from vmg.estimators.pseudo_data.regressor import VMGRegressor
from vmg.estimators.regressor import TableRegressor
from vmg.estimators.saving_ensembles import (
    decode_classification,
    decode_regression,
    encode_classification,
    encode_regression,
)
from vmg.estimators.saving_targets import (
    decode_scalar,
    decode_scores,
    decode_transform,
    encode_scalar,
    encode_scores,
    encode_transform,
)
from vmg.fit.classes import ClassificationEnsemble
from vmg.fit.design import Standardiser
from vmg.fit.gaussian import RegressionEnsemble
from vmg.fit.glm import ScalarEnsemble
from vmg.likelihoods import CategoricalLikelihood, GaussianLikelihood, HeteroscedasticLikelihood, Likelihood
from vmg.model_file import ModelFileError
from vmg.nn.layer_parameters import FAMILIES
from vmg.nn.matrix_gaussian import MatrixGaussianLinear
from vmg.nn.mlp import ACTIVATIONS, MLP
from vmg.prediction.transforms import LogTransform, Rectified
from vmg.priors import FixedPrior, GammaPrior, IsotropicPrior, Prior
from vmg.training import History, Progress

__all__ = ["from_state", "to_state"]

Tensors = dict[str, Tensor]
Document = dict[str, Any]

Estimator = TableEstimator | NetworkEstimator

KINDS: tuple[type[Estimator], ...] = (TableClassifier, TableRegressor, VMGClassifier, VMGRegressor)
ESTIMATORS: dict[str, type[Estimator]] = {cls.__name__: cls for cls in KINDS}

# classes of modules, with the options of their constructors that are attributes, not part of their state_dict
LIKELIHOODS: dict[type[Likelihood], tuple[str, ...]] = {
    CategoricalLikelihood: (),
    GaussianLikelihood: ("n_outputs", "conjugate", "step_size"),
    HeteroscedasticLikelihood: ("n_outputs", "step_size", "limit", "balance"),
}
PRIORS: dict[type[Prior], tuple[str, ...]] = {
    FixedPrior: (),
    GammaPrior: ("concentration", "rate", "conjugate"),
    IsotropicPrior: ("scale",),
}


def to_state(estimator: Estimator) -> tuple[Tensors, Document]:
    """Everything that a fitted estimator consists of."""
    check_is_fitted(estimator, "seed_")
    kind = type(estimator)
    if kind not in ESTIMATORS.values():
        raise ModelFileError(f"only {' and '.join(ESTIMATORS)} can be saved; got {kind.__name__}")
    parameters = estimator.get_params(deep=False)
    try:
        check_parameters(parameters)
    except ValueError as error:
        raise ModelFileError(str(error)) from error
    tensors: Tensors = {}
    attributes = {
        name: _encode(name, value, tensors) for name, value in vars(estimator).items() if name not in parameters
    }
    document = {
        "holds": kind.__name__,
        "parameters": {name: _encode_parameter(name, value) for name, value in parameters.items()},
        "attributes": attributes,
    }
    return tensors, document


def from_state(tensors: Tensors, document: Document) -> Estimator:
    """The estimator that :func:`to_state` took apart."""
    try:
        parameters = {name: _decode_parameter(value) for name, value in document["parameters"].items()}
        check_parameters(parameters)
        kind = ESTIMATORS[document["holds"]]
        estimator = kind(**parameters)
        for name, value in document["attributes"].items():
            if name in parameters or hasattr(kind, name) or name.startswith("__"):
                raise ValueError(f"{name} must not be a fitted attribute")
            setattr(estimator, name, _decode(name, value, tensors))
        check_answers(estimator)
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
        hint = f"code is never saved: use one of {tuple(ACTIVATIONS)}"
    else:
        hint = "use numbers, strings or sequences of them"
    raise ModelFileError(f"{name}={value!r} cannot be saved; {hint}")


def _decode_parameter(value: Any) -> Any:
    if isinstance(value, dict):
        return {_decode_parameter(key): _decode_parameter(item) for key, item in value["pairs"]}
    return tuple(_decode_parameter(item) for item in value) if isinstance(value, list) else value


# -- fitted attributes ------------------------------------------------------------------------------------------------


def _encode(name: str, value: Any, tensors: Tensors) -> Any:
    """A JSON value for ``value``; its arrays go to ``tensors`` under names that start with ``name``."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return value.item()
    for kind, codec in CODECS.items():
        if isinstance(value, kind):
            return {codec.tag: codec.encode(name, value, tensors)}
    raise ModelFileError(f"{name} of type {type(value).__name__} cannot be saved")


def _decode(name: str, value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if not isinstance(value, dict):
        return value
    [(tag, content)] = value.items()
    decoders = {codec.tag: codec.decode for codec in CODECS.values()}
    return decoders[tag](name, content, tensors)


def _encode_array(name: str, array: NDArray[Any], tensors: Tensors) -> Document:
    if array.dtype.kind in "biuf":
        tensors[name] = torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("=")))
        return {}
    items = array.tolist()
    if array.ndim != 1 or not all(isinstance(item, bool | int | float | str) for item in items):
        raise ModelFileError(f"{name} of type {array.dtype} cannot be saved; use numbers or strings")
    return {"items": items, "dtype": array.dtype.str}


def _decode_array(name: str, content: Document, tensors: Mapping[str, Tensor]) -> NDArray[Any]:
    if not content:
        return tensors[name].numpy().copy()
    return read_array(name, np.dtype(content["dtype"]), list(content["items"]))


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
    return {"stopped": history.stopped}


def _decode_history(name: str, content: Document, tensors: Mapping[str, Tensor]) -> History:
    records = [Progress(int(step), int(n_steps), *rest) for step, n_steps, *rest in tensors[name].tolist()]
    return History(records, content["stopped"])


# -- modules ----------------------------------------------------------------------------------------------------------


def _describe(name: str, module: Any, known: Mapping[type[Any], tuple[str, ...]]) -> Document:
    """The name of a module's class and the options that it was made with."""
    if type(module) not in known:
        raise ModelFileError(f"{name} of type {type(module).__name__} cannot be saved")
    return {"class": type(module).__name__, **{option: getattr(module, option) for option in known[type(module)]}}


def _class_of(description: Document, known: Mapping[type[Any], tuple[str, ...]]) -> tuple[type[Any], Document]:
    """A class and its options from :func:`_describe`; only classes of the table can be named."""
    classes = {cls.__name__: cls for cls in known}
    cls = classes[description["class"]]
    return cls, {option: description[option] for option in known[cls]}


def _put(name: str, module: torch.nn.Module, tensors: Tensors) -> None:
    tensors.update({f"{name}.{key}": value for key, value in module.state_dict().items()})


def _take(name: str, tensors: Mapping[str, Tensor]) -> Tensors:
    return {key.removeprefix(f"{name}."): value for key, value in tensors.items() if key.startswith(f"{name}.")}


def _encode_likelihood(name: str, likelihood: Likelihood, tensors: Tensors) -> Document:
    _put(name, likelihood, tensors)
    return _describe(name, likelihood, LIKELIHOODS)


def _decode_likelihood(name: str, content: Document, tensors: Mapping[str, Tensor]) -> Likelihood:
    check_likelihood(name, content, tensors)
    cls, options = _class_of(content, LIKELIHOODS)
    state = _take(name, tensors)
    if "prior_rate" in state:
        options["batch_shape"] = state["prior_rate"].shape[:-1]
    likelihood = cls(**options)
    likelihood.load_state_dict(state)
    return likelihood.eval()


def _encode_network(name: str, network: MLP, tensors: Tensors) -> Document:
    _put(name, network, tensors)
    names = [known for known, function in ACTIVATIONS.items() if function is network.activation]
    if not names:
        raise ModelFileError(
            f"activation={network.activation!r} cannot be saved; code is never saved: use one of {tuple(ACTIVATIONS)}"
        )
    return {
        "activation": names[0],
        "layers": [_describe_layer(f"{name}.layers.{i}", layer) for i, layer in enumerate(network.layers)],
    }


def _describe_layer(name: str, layer: Any) -> Document:
    families = {parameters: family for family, parameters in FAMILIES.items()}
    pseudo_data = layer.pseudo_data
    options: Document = {
        "in_features": layer.in_features,
        "out_features": layer.out_features,
        "bias": layer.has_bias,
        "n_pseudo": layer.n_pseudo,
        "row_covariance": families[type(layer.row)],
        "column_covariance": families[type(layer.column)],
        "zero_mean": layer.loc is None,
        "sampling": layer.sampling,
        "damping": layer.damping,
        "batch_shape": list(layer.batch_shape),
        "prior": _describe(f"{name}.prior", layer.prior, PRIORS),
    }
    if pseudo_data is not None:
        bound = pseudo_data.max_noise
        options |= {
            "max_noise": bound.tolist() if isinstance(bound, Tensor) else bound,
            "pseudo_noise": pseudo_data.noise,
        }
    return options


def _decode_network(name: str, content: Document, tensors: Mapping[str, Tensor]) -> MLP:
    layers = content["layers"]
    for i, layer in enumerate(layers):
        check_layer(f"{name}.layers.{i}", layer, tensors)
    inner = [layer["out_features"] for layer in layers]
    with torch.random.fork_rng(devices=[]):  # a new layer draws its start; loading leaves the caller's numbers alone
        network = MLP(layers[0]["in_features"], inner[:-1], inner[-1], activation=content["activation"])
        for i, options in enumerate(layers):
            network.layers[i] = _make_layer(f"{name}.layers.{i}", options, tensors)
    network.load_state_dict(_take(name, tensors))
    return network.eval()


def _make_layer(name: str, description: Document, tensors: Mapping[str, Tensor]) -> MatrixGaussianLinear:
    cls, prior_options = _class_of(description["prior"], PRIORS)
    if cls is FixedPrior:  # its distribution is in the file
        prior_options = _take(f"{name}.prior", tensors)
    with warnings.catch_warnings():  # the estimators do not warn of many pseudo-points either
        warnings.filterwarnings("ignore", message="n_pseudo should be <")
        return MatrixGaussianLinear(**{**description, "prior": cls(**prior_options)})


# -- estimators inside estimators -------------------------------------------------------------------------------------


def _encode_estimator(name: str, estimator: Estimator, tensors: Tensors) -> Document:
    inner, document = to_state(estimator)
    tensors.update({f"{name}.{key}": value for key, value in inner.items()})
    return document


def _decode_estimator(name: str, content: Document, tensors: Mapping[str, Tensor]) -> Estimator:
    if content["holds"] not in ("VMGClassifier", "VMGRegressor"):
        raise ValueError(f"{name} must be an estimator with pseudo-data; got {content['holds']!r}")
    return from_state(_take(name, tensors), content)


class Codec(NamedTuple):
    """How values of one type are written and read."""

    tag: str
    encode: Callable[[str, Any, Tensors], Document]
    decode: Callable[[str, Document, Mapping[str, Tensor]], Any]


CODECS: dict[type[Any], Codec] = {
    np.ndarray: Codec("array", _encode_array, _decode_array),
    Standardiser: Codec("standardiser", _encode_scaling, _decode_scaling),
    History: Codec("history", _encode_history, _decode_history),
    MLP: Codec("network", _encode_network, _decode_network),
    Likelihood: Codec("likelihood", _encode_likelihood, _decode_likelihood),
    RegressionEnsemble: Codec("regression", encode_regression, decode_regression),
    ClassificationEnsemble: Codec("classification", encode_classification, decode_classification),
    ScalarEnsemble: Codec("scalar", encode_scalar, decode_scalar),
    LogTransform: Codec("transform", encode_transform, decode_transform),
    Rectified: Codec("transform", encode_transform, decode_transform),
    dict: Codec("scores", encode_scores, decode_scores),
    NetworkEstimator: Codec("estimator", _encode_estimator, _decode_estimator),
}

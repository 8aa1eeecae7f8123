"""Networks and likelihoods as tensors and a JSON document, and back.

They are described by their own options, not by the estimator's parameters: those may have been changed since the fit.
A described module is made without memory (device "meta") and takes over the file's tensors, which must have its shapes:
so no description, whatever sizes it claims, takes more memory than its file.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from vmg.estimators.documents import Codec
from vmg.likelihoods import CategoricalLikelihood, GaussianLikelihood, HeteroscedasticLikelihood, Likelihood
from vmg.model_file import Document, ModelFileError, Tensors
from vmg.nn.layer_parameters import FAMILIES
from vmg.nn.matrix_gaussian import MatrixGaussianLinear
from vmg.nn.mlp import ACTIVATIONS, MLP
from vmg.priors import FixedPrior, GammaPrior, IsotropicPrior, Prior

__all__ = ["MODULE_CODECS"]

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


def _describe(module: Any, known: Mapping[type[Any], tuple[str, ...]]) -> Document:
    """The name of a module's class and the options that it was made with."""
    if type(module) not in known:
        raise ModelFileError(f"its type is {type(module).__name__}")
    return {"class": type(module).__name__, **{option: getattr(module, option) for option in known[type(module)]}}


def _class_of(description: Document, known: Mapping[type[Any], tuple[str, ...]]) -> tuple[type[Any], Document]:
    """A class and its options from :func:`_describe`; only classes of the table can be named."""
    classes = {cls.__name__: cls for cls in known}
    cls = classes[description["class"]]
    return cls, {option: description[option] for option in known[cls]}


def _encode_likelihood(likelihood: Likelihood) -> tuple[Tensors, Document]:
    return likelihood.state_dict(), _describe(likelihood, LIKELIHOODS)


def _decode_likelihood(tensors: Tensors, document: Document) -> Likelihood:
    cls, options = _class_of(document, LIKELIHOODS)
    if "n_outputs" in options:
        options["batch_shape"] = tensors["prior_rate"].shape[:-1]
    with torch.device("meta"):
        likelihood: Likelihood = cls(**options)
    likelihood.load_state_dict({key: tensor.clone() for key, tensor in tensors.items()}, assign=True)
    return likelihood.eval()


def _encode_network(network: MLP) -> tuple[Tensors, Document]:
    names = [known for known, function in ACTIVATIONS.items() if function is network.activation]
    if not names:
        raise ModelFileError(
            f"activation={network.activation!r} cannot be saved; code is never saved: use one of {tuple(ACTIVATIONS)}"
        )
    return network.state_dict(), {
        "activation": names[0],
        "layers": [_describe_layer(layer) for layer in network.layers],
    }


def _describe_layer(layer: Any) -> Document:
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
        "prior": _describe(layer.prior, PRIORS),
    }
    if pseudo_data is not None:
        bound = pseudo_data.max_noise
        options |= {
            "max_noise": bound.tolist() if isinstance(bound, Tensor) else bound,
            "pseudo_noise": pseudo_data.noise,
        }
    return options


def _decode_network(tensors: Tensors, document: Document) -> MLP:
    layers = document["layers"]
    sizes = [layer["out_features"] for layer in layers]
    with torch.device("meta"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="n_pseudo should be <")  # nor do the estimators warn of it
        network = MLP(layers[0]["in_features"], sizes[:-1], sizes[-1], activation=document["activation"])
        for i, options in enumerate(layers):
            cls, prior_options = _class_of(options["prior"], PRIORS)
            if cls is FixedPrior:  # its distribution is in the file
                start = f"layers.{i}.prior."
                prior_options = {key.removeprefix(start): t for key, t in tensors.items() if key.startswith(start)}
            network.layers[i] = MatrixGaussianLinear(**{**options, "prior": cls(**prior_options)})
    network.load_state_dict({key: tensor.clone() for key, tensor in tensors.items()}, assign=True)
    return network.eval()


MODULE_CODECS: dict[type[Any], Codec] = {
    MLP: Codec("network", _encode_network, _decode_network),
    Likelihood: Codec("likelihood", _encode_likelihood, _decode_likelihood),
}

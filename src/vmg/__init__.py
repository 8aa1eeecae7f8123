"""Neural networks that know what they do not know: matrix Gaussian posteriors sharpened by pseudo-data.

Names and modules are loaded when they are first used, so that each costs only what it needs itself.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

__all__ = [
    "ElboTerms",
    "MatrixNormal",
    "ModelFileError",
    "TableClassifier",
    "TableRegressor",
    "VMGClassifier",
    "VMGRegressor",
    "collapsed_elbo",
    "compare",
    "covariance",
    "elbo",
    "estimators",
    "freeze_draws",
    "kl_warmup",
    "likelihoods",
    "load",
    "metrics",
    "nn",
    "predict",
    "priors",
    "sample_functions",
    "training",
]

if TYPE_CHECKING:
    from vmg import covariance, estimators, likelihoods, metrics, nn, priors, training
    from vmg.estimators import TableClassifier, TableModel, TableRegressor
    from vmg.math.matrix_normal import MatrixNormal
    from vmg.model_file import ModelFileError
    from vmg.objective import ElboTerms, collapsed_elbo, elbo, kl_warmup
    from vmg.prediction.networks import freeze_draws, predict, sample_functions
    from vmg.review.holdout import compare
    from vmg.variational import VMGClassifier, VMGRegressor
else:  # hidden from type checkers, for which a module with __getattr__ has every name
    _MODULES = {
        **dict.fromkeys(("TableClassifier", "TableRegressor"), "estimators"),
        **dict.fromkeys(("VMGClassifier", "VMGRegressor"), "variational"),
        **dict.fromkeys(("ElboTerms", "collapsed_elbo", "elbo", "kl_warmup"), "objective"),
        **dict.fromkeys(("freeze_draws", "predict", "sample_functions"), "prediction.networks"),
        "MatrixNormal": "math.matrix_normal",
        "ModelFileError": "model_file",
        "compare": "review.holdout",
    }

    def __getattr__(name):
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module = import_module(f"{__name__}.{_MODULES.get(name, name)}")
        value = getattr(module, name) if name in _MODULES else module
        globals()[name] = value
        return value

    def __dir__():
        return sorted({*globals(), *__all__})


def load(path: str | os.PathLike[str]) -> TableClassifier | TableModel | TableRegressor | VMGClassifier | VMGRegressor:
    """The model in a file that ``save`` or ``vmg fit`` wrote; its predictions are equal to the last bit.

    Loading runs no code from the file. A missing, damaged, foreign or newer file raises :class:`ModelFileError`.
    """
    from vmg.model_file import ModelFileError, read

    tensors, document = read(path)
    name = str(document.get("holds"))
    if name not in ("TableClassifier", "TableModel", "TableRegressor", "VMGClassifier", "VMGRegressor"):
        raise ModelFileError(f"{os.fspath(path)} does not describe a whole model: it holds {name:.40}")
    kind: Any = getattr(import_module(f"vmg.{'variational' if name.startswith('VMG') else 'estimators'}"), name)
    model: TableClassifier | TableModel | TableRegressor | VMGClassifier | VMGRegressor
    model = kind.from_document(tensors, document)
    return model

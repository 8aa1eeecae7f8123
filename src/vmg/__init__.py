"""Neural networks that know what they do not know: matrix Gaussian posteriors sharpened by pseudo-data."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from vmg import covariance, nn
from vmg.distributions import MatrixNormal
from vmg.draws import freeze_draws, predict, sample_functions
from vmg.estimators import VMGClassifier, VMGRegressor
from vmg.estimators.saving import from_state
from vmg.objective import ElboTerms, elbo, kl_warmup
from vmg.persistence import ModelFileError, read

if TYPE_CHECKING:
    from vmg.estimators.base import BaseVMG
    from vmg.tables import TableModel

__version__ = "0.1.0"

__all__ = [
    "ElboTerms",
    "MatrixNormal",
    "ModelFileError",
    "VMGClassifier",
    "VMGRegressor",
    "covariance",
    "elbo",
    "freeze_draws",
    "kl_warmup",
    "load",
    "nn",
    "predict",
    "sample_functions",
]


def load(path: str | os.PathLike[str]) -> BaseVMG | TableModel:
    """The model in a file that ``save`` or ``vmg fit`` wrote; its predictions are equal to the last bit.

    Loading runs no code from the file. A missing, damaged, foreign or newer file raises :class:`ModelFileError`.
    """
    tensors, document = read(path)
    if document.get("holds") == "TableModel":
        from vmg.tables import TableModel  # needs pandas, which the estimators do without

        return TableModel.from_state(tensors, document)
    return from_state(tensors, document)

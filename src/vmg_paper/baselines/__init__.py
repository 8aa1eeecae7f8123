"""The methods that the paper compares: ``Dropout(rate=0.1).regressor()`` is an estimator."""

from vmg_paper.baselines.base import Baseline, BaselineRegressor
from vmg_paper.baselines.batched_regressor import BatchedRegressor
from vmg_paper.baselines.hmc import HMCRegressor
from vmg_paper.baselines.layer_methods import (
    BayesByBackprop,
    DeepEnsemble,
    DropConnect,
    Dropout,
    Graves,
    MatrixGaussian,
    MaximumLikelihood,
    MCDropout,
    MeanField,
    PaperVMG,
    VariationalDropout,
)
from vmg_paper.baselines.pbp import PBPRegressor

__all__ = [
    "Baseline",
    "BaselineRegressor",
    "BatchedRegressor",
    "BayesByBackprop",
    "DeepEnsemble",
    "DropConnect",
    "Dropout",
    "Graves",
    "HMCRegressor",
    "MCDropout",
    "MatrixGaussian",
    "MaximumLikelihood",
    "MeanField",
    "PBPRegressor",
    "PaperVMG",
    "VariationalDropout",
]

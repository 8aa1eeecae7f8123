"""The methods that the paper compares with numbers: ``MCDropout(rate=0.1).regressor()`` is an estimator."""

from vmg_paper.baselines.base import Baseline, BaselineRegressor
from vmg_paper.baselines.batched_regressor import BatchedRegressor
from vmg_paper.baselines.global_inducing import GlobalInducingRegressor
from vmg_paper.baselines.hmc import HMCRegressor
from vmg_paper.baselines.layer_methods import DeepEnsemble, Graves, MatrixGaussian, MCDropout, MeanField, PaperVMG
from vmg_paper.baselines.pbp import PBPRegressor

__all__ = [
    "Baseline",
    "BaselineRegressor",
    "BatchedRegressor",
    "DeepEnsemble",
    "GlobalInducingRegressor",
    "Graves",
    "HMCRegressor",
    "MCDropout",
    "MatrixGaussian",
    "MeanField",
    "PBPRegressor",
    "PaperVMG",
]

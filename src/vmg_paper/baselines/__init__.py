"""The methods that the paper compares: ``Dropout(rate=0.1).regressor()`` is an estimator."""

from vmg_paper.baselines.base import Baseline, BaselineClassifier, BaselineRegressor
from vmg_paper.baselines.batched_regressor import BatchedRegressor
from vmg_paper.baselines.bayes_by_backprop import BayesByBackprop
from vmg_paper.baselines.deep_ensemble import DeepEnsemble
from vmg_paper.baselines.dropconnect import DropConnect
from vmg_paper.baselines.dropout import Dropout
from vmg_paper.baselines.graves import Graves
from vmg_paper.baselines.hmc import HMCRegressor
from vmg_paper.baselines.matrix_gaussian import MatrixGaussian, PaperVMG
from vmg_paper.baselines.max_likelihood import MaximumLikelihood
from vmg_paper.baselines.mc_dropout import MCDropout
from vmg_paper.baselines.mean_field import MeanField
from vmg_paper.baselines.pbp import PBPRegressor
from vmg_paper.baselines.sgld import SGLDRegressor
from vmg_paper.baselines.variational_dropout import VariationalDropout

__all__ = [
    "Baseline",
    "BaselineClassifier",
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
    "SGLDRegressor",
    "VariationalDropout",
]

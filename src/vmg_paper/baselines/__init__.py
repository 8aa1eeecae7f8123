"""The methods that the paper compares, each as an estimator."""

from vmg_paper.baselines.batched_regressor import BatchedRegressor
from vmg_paper.baselines.bayes_by_backprop import BayesByBackpropClassifier, BayesByBackpropRegressor
from vmg_paper.baselines.deep_ensemble import DeepEnsembleRegressor
from vmg_paper.baselines.dropconnect import DropConnectClassifier, DropConnectRegressor
from vmg_paper.baselines.dropout import DropoutClassifier, DropoutRegressor
from vmg_paper.baselines.graves import GravesClassifier, GravesRegressor
from vmg_paper.baselines.hmc import HMCRegressor
from vmg_paper.baselines.max_likelihood import MaximumLikelihoodClassifier, MaximumLikelihoodRegressor
from vmg_paper.baselines.mc_dropout import MCDropoutRegressor
from vmg_paper.baselines.mean_field import MeanFieldClassifier, MeanFieldRegressor
from vmg_paper.baselines.paper_vmg import PaperVMGRegressor
from vmg_paper.baselines.pbp import PBPRegressor
from vmg_paper.baselines.sgld import SGLDRegressor
from vmg_paper.baselines.variational_dropout import VariationalDropoutClassifier, VariationalDropoutRegressor

__all__ = [
    "BatchedRegressor",
    "BayesByBackpropClassifier",
    "BayesByBackpropRegressor",
    "DeepEnsembleRegressor",
    "DropConnectClassifier",
    "DropConnectRegressor",
    "DropoutClassifier",
    "DropoutRegressor",
    "GravesClassifier",
    "GravesRegressor",
    "HMCRegressor",
    "MCDropoutRegressor",
    "MaximumLikelihoodClassifier",
    "MaximumLikelihoodRegressor",
    "MeanFieldClassifier",
    "MeanFieldRegressor",
    "PBPRegressor",
    "PaperVMGRegressor",
    "SGLDRegressor",
    "VariationalDropoutClassifier",
    "VariationalDropoutRegressor",
]

"""The methods that the paper compares, each as an estimator."""

from vmg.baselines.batched import BatchedRegressor
from vmg.baselines.bayes_by_backprop import BayesByBackpropClassifier, BayesByBackpropRegressor
from vmg.baselines.deep_ensemble import DeepEnsembleRegressor
from vmg.baselines.dropconnect import DropConnectClassifier, DropConnectRegressor
from vmg.baselines.dropout import DropoutClassifier, DropoutRegressor
from vmg.baselines.graves import GravesClassifier, GravesRegressor
from vmg.baselines.hmc import HMCRegressor
from vmg.baselines.max_likelihood import MaximumLikelihoodClassifier, MaximumLikelihoodRegressor
from vmg.baselines.mc_dropout import MCDropoutRegressor
from vmg.baselines.mean_field import MeanFieldClassifier, MeanFieldRegressor
from vmg.baselines.paper import PaperVMGRegressor
from vmg.baselines.pbp import PBPRegressor
from vmg.baselines.sgld import SGLDRegressor
from vmg.baselines.variational_dropout import VariationalDropoutClassifier, VariationalDropoutRegressor

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

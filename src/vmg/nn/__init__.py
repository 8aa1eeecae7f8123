"""Bayesian layers and networks."""

from vmg.nn.bayes_by_backprop import BayesByBackpropLinear, ScaleMixture
from vmg.nn.contract import BayesianLinear, BayesianModule, kl_divergence, use_generator
from vmg.nn.convert import bayesianize
from vmg.nn.deterministic import DeterministicLinear
from vmg.nn.dropconnect import DropConnectLinear
from vmg.nn.dropout import DropoutLinear
from vmg.nn.global_inducing import GlobalInducingMLP
from vmg.nn.graves import GravesLinear
from vmg.nn.matrix_gaussian import MatrixGaussianLinear
from vmg.nn.mean_field import MeanFieldLinear
from vmg.nn.mlp import MLP
from vmg.nn.pseudo_data import PseudoData
from vmg.nn.variational_dropout import VariationalDropoutLinear

__all__ = [
    "MLP",
    "BayesByBackpropLinear",
    "BayesianLinear",
    "BayesianModule",
    "DeterministicLinear",
    "DropConnectLinear",
    "DropoutLinear",
    "GlobalInducingMLP",
    "GravesLinear",
    "MatrixGaussianLinear",
    "MeanFieldLinear",
    "PseudoData",
    "ScaleMixture",
    "VariationalDropoutLinear",
    "bayesianize",
    "kl_divergence",
    "use_generator",
]

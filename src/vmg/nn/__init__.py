"""Bayesian layers and networks."""

from vmg.nn.contract import BayesianLinear, BayesianModule, kl_divergence, use_generator
from vmg.nn.convert import bayesianize
from vmg.nn.matrix_gaussian import MatrixGaussianLinear
from vmg.nn.mlp import MLP
from vmg.nn.pseudo_data import PseudoData

__all__ = [
    "MLP",
    "BayesianLinear",
    "BayesianModule",
    "MatrixGaussianLinear",
    "PseudoData",
    "bayesianize",
    "kl_divergence",
    "use_generator",
]

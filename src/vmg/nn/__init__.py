"""Bayesian layers and networks."""

from vmg.nn.anchored import AnchoredFeatures
from vmg.nn.contract import BayesianLinear, BayesianModule, kl_divergence, use_generator
from vmg.nn.convert import bayesianize
from vmg.nn.global_inducing import GlobalInducingMLP
from vmg.nn.head import BayesianHead, HeadPrediction
from vmg.nn.matrix_gaussian import MatrixGaussianLinear
from vmg.nn.mlp import MLP
from vmg.nn.pseudo_data import PseudoData

__all__ = [
    "MLP",
    "AnchoredFeatures",
    "BayesianHead",
    "BayesianLinear",
    "BayesianModule",
    "GlobalInducingMLP",
    "HeadPrediction",
    "MatrixGaussianLinear",
    "PseudoData",
    "bayesianize",
    "kl_divergence",
    "use_generator",
]

"""Bayesian layers and networks."""

from vmg.nn.anchored import AnchoredFeatures
from vmg.nn.bayesian import BayesianLinear, BayesianModule, kl_divergence, parameter_groups, use_generator
from vmg.nn.convert import Conversion, bayesianize, conversion, to_plain
from vmg.nn.draws import Draws, fixed_draw
from vmg.nn.embedding import MatrixGaussianEmbedding
from vmg.nn.head import BayesianHead, FunctionPosterior, HeadEnsemble
from vmg.nn.lora import MatrixGaussianLoRA, add_lora
from vmg.nn.matrix_gaussian import MatrixGaussianLinear, PseudoData
from vmg.nn.mlp import MLP
from vmg.nn.modules import MatrixGaussianModule
from vmg.nn.replicas import Replicas, replicate

__all__ = [
    "MLP",
    "AnchoredFeatures",
    "BayesianHead",
    "BayesianLinear",
    "BayesianModule",
    "Conversion",
    "Draws",
    "FunctionPosterior",
    "HeadEnsemble",
    "MatrixGaussianEmbedding",
    "MatrixGaussianLinear",
    "MatrixGaussianLoRA",
    "MatrixGaussianModule",
    "PseudoData",
    "Replicas",
    "add_lora",
    "bayesianize",
    "conversion",
    "fixed_draw",
    "kl_divergence",
    "parameter_groups",
    "replicate",
    "to_plain",
    "use_generator",
]

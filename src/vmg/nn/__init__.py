"""Bayesian layers and networks."""

from vmg.nn.attention import MatrixGaussianMultiheadAttention
from vmg.nn.bayes_by_backprop import BayesByBackpropLinear, ScaleMixture
from vmg.nn.contract import BayesianLinear, BayesianModule, kl_divergence, use_generator
from vmg.nn.convert import Conversion, bayesianize, conversion
from vmg.nn.convolution import MatrixGaussianConv1d, MatrixGaussianConv2d
from vmg.nn.deterministic import DeterministicLinear
from vmg.nn.drawing import Draws, fixed_draw
from vmg.nn.dropconnect import DropConnectLinear
from vmg.nn.dropout import DropoutLinear
from vmg.nn.embedding import MatrixGaussianEmbedding
from vmg.nn.graves import GravesLinear
from vmg.nn.groups import parameter_groups
from vmg.nn.lora import MatrixGaussianLoRA, add_lora
from vmg.nn.matrix_gaussian import MatrixGaussianLinear
from vmg.nn.mean_field import MeanFieldLinear
from vmg.nn.mlp import MLP
from vmg.nn.plain import to_plain
from vmg.nn.pseudo_data import PseudoData
from vmg.nn.variational_dropout import VariationalDropoutLinear

__all__ = [
    "MLP",
    "BayesByBackpropLinear",
    "BayesianLinear",
    "BayesianModule",
    "Conversion",
    "DeterministicLinear",
    "Draws",
    "DropConnectLinear",
    "DropoutLinear",
    "GravesLinear",
    "MatrixGaussianConv1d",
    "MatrixGaussianConv2d",
    "MatrixGaussianEmbedding",
    "MatrixGaussianLinear",
    "MatrixGaussianLoRA",
    "MatrixGaussianMultiheadAttention",
    "MeanFieldLinear",
    "PseudoData",
    "ScaleMixture",
    "VariationalDropoutLinear",
    "add_lora",
    "bayesianize",
    "conversion",
    "fixed_draw",
    "kl_divergence",
    "parameter_groups",
    "to_plain",
    "use_generator",
]

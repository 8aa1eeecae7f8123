"""The layers of the methods that the paper compares with, and a network with global inducing points."""

from vmg_paper.layers.bayes_by_backprop import BayesByBackpropLinear, ScaleMixture
from vmg_paper.layers.deterministic import DeterministicLinear
from vmg_paper.layers.dropconnect import DropConnectLinear
from vmg_paper.layers.dropout import DropoutLinear
from vmg_paper.layers.global_inducing import GlobalInducingMLP
from vmg_paper.layers.graves import GravesLinear
from vmg_paper.layers.mean_field import MeanFieldLinear
from vmg_paper.layers.variational_dropout import VariationalDropoutLinear

__all__ = [
    "BayesByBackpropLinear",
    "DeterministicLinear",
    "DropConnectLinear",
    "DropoutLinear",
    "GlobalInducingMLP",
    "GravesLinear",
    "MeanFieldLinear",
    "ScaleMixture",
    "VariationalDropoutLinear",
]

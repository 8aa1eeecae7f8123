"""The layers of the methods that the paper compares with, and a network with global inducing points."""

from vmg_paper.layers.factorised import BayesByBackpropLinear, GravesLinear, MeanFieldLinear, ScaleMixture
from vmg_paper.layers.global_inducing import GlobalInducingMLP
from vmg_paper.layers.point_weights import (
    DeterministicLinear,
    DropConnectLinear,
    DropoutLinear,
    VariationalDropoutLinear,
)

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

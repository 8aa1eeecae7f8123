"""Fits of Bayesian networks by the lower bound, among them the paper's own: many networks as one batched network."""

from vmg.fit.variational.budget import LONG, STANDARD, Budget
from vmg.fit.variational.early_stopping import EarlyStopping
from vmg.fit.variational.fitter import Fitted, Fitter, Method
from vmg.fit.variational.likelihood_factories import CategoricalClasses, GaussianNoise
from vmg.fit.variational.networks import MatrixGaussianNetworks
from vmg.fit.variational.noise_search import NoiseSearch
from vmg.fit.variational.search import Given
from vmg.fit.variational.targets import ClassTargets, NumericTargets, Targets
from vmg.fit.variational.training_sets import TrainingSet

__all__ = [
    "LONG",
    "STANDARD",
    "Budget",
    "CategoricalClasses",
    "ClassTargets",
    "EarlyStopping",
    "Fitted",
    "Fitter",
    "GaussianNoise",
    "Given",
    "MatrixGaussianNetworks",
    "Method",
    "NoiseSearch",
    "NumericTargets",
    "Targets",
    "TrainingSet",
]

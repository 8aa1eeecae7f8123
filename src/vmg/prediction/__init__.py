"""Predictions of fitted models: distributions of targets, draws of functions, conformal intervals."""

from vmg.prediction.base import NumberPrediction, row_pieces
from vmg.prediction.classes import ClassPrediction, class_mixture
from vmg.prediction.glm import GLMPrediction
from vmg.prediction.mixture import AtomPrediction, MixturePrediction, Prediction
from vmg.prediction.networks import draw_functions
from vmg.prediction.student import StudentPrediction
from vmg.prediction.transformed import TransformedPrediction

__all__ = [
    "AtomPrediction",
    "ClassPrediction",
    "GLMPrediction",
    "MixturePrediction",
    "NumberPrediction",
    "Prediction",
    "StudentPrediction",
    "TransformedPrediction",
    "class_mixture",
    "draw_functions",
    "row_pieces",
]

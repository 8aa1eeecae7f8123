"""Predictions of fitted models: distributions of targets, draws of functions, conformal intervals."""

from vmg.prediction.base import ClassPrediction, NumberPrediction, class_mixture, row_pieces
from vmg.prediction.glm import GLMPrediction
from vmg.prediction.mixture import AtomPrediction, MixturePrediction, Prediction
from vmg.prediction.networks import draw_functions, sample_outputs
from vmg.prediction.student import MixtureNoisePrediction, StudentPrediction, TransformedPrediction
from vmg.prediction.widened import WidenedPrediction, widen

__all__ = [
    "AtomPrediction",
    "ClassPrediction",
    "GLMPrediction",
    "MixtureNoisePrediction",
    "MixturePrediction",
    "NumberPrediction",
    "Prediction",
    "StudentPrediction",
    "TransformedPrediction",
    "WidenedPrediction",
    "class_mixture",
    "draw_functions",
    "row_pieces",
    "sample_outputs",
    "widen",
]

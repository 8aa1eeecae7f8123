"""What fitted models say of new rows: distributions of targets, draws of functions, moments, conformal intervals."""

from vmg.prediction.distribution import ClassPrediction, Prediction, draw_functions, row_pieces, sample_outputs
from vmg.prediction.propagation import propagate_moments
from vmg.prediction.student import StudentPrediction

__all__ = [
    "ClassPrediction",
    "Prediction",
    "StudentPrediction",
    "draw_functions",
    "propagate_moments",
    "row_pieces",
    "sample_outputs",
]

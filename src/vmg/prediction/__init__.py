"""What fitted models say of new rows: distributions of targets, draws of functions, conformal intervals."""

from vmg.prediction.distribution import ClassPrediction, Prediction, draw_functions, row_pieces, sample_outputs
from vmg.prediction.linked import LinkedPrediction
from vmg.prediction.shaped import ShapedPrediction
from vmg.prediction.student import StudentPrediction
from vmg.prediction.transformed import TransformedPrediction

__all__ = [
    "ClassPrediction",
    "LinkedPrediction",
    "NumberPrediction",
    "Prediction",
    "ShapedPrediction",
    "StudentPrediction",
    "TransformedPrediction",
    "draw_functions",
    "row_pieces",
    "sample_outputs",
]

NumberPrediction = StudentPrediction | ShapedPrediction | TransformedPrediction | LinkedPrediction | Prediction
"""What a regressor may say of rows."""

"""Predictions as callers take them: a mean and its deviation, or a table with columns and flags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from vmg.prediction import ClassPrediction
from vmg.prediction.conformal import conformal_interval

__all__ = [
    "FLAGS",
    "NOT_FINITE",
    "MeanAndStd",
    "flag_texts",
    "mark_not_finite",
    "named_after",
    "split_flags",
    "tabulate_classes",
    "tabulate_numbers",
]

Mask = NDArray[np.bool_]

FLAGS = "flags"
NOT_FINITE = "not-finite"
SEPARATOR = ";"


class MeanAndStd(tuple[NDArray[Any], NDArray[Any]]):
    """A mean and a standard deviation, which some of scikit-learn's tools take for one array."""

    def __getattr__(self, name: str) -> Any:
        if name in ("ndim", "shape", "reshape"):
            raise TypeError(
                "predict with return_std=True gives a mean and a standard deviation, which TransformedTargetRegressor "
                "cannot transform back; use likelihood='lognormal', or predict_interval of the inner regressor"
            )
        raise AttributeError(f"a mean and a standard deviation have no attribute {name!r}")


def tabulate_numbers(prediction: Any, conformal_scores: NDArray[Any] | None, coverage: float) -> pd.DataFrame:
    """Mean, standard deviation and its parts, and the interval of each row."""
    lower, upper = conformal_interval(prediction, conformal_scores, coverage).T
    std = prediction.std
    return pd.DataFrame(
        {
            "mean": prediction.mean,
            "std": std,
            "lower": lower,
            "upper": upper,
            "aleatoric_std": prediction.aleatoric_std,
            "epistemic_std": prediction.epistemic_std,
            "ignorance": (prediction.epistemic_std / std) ** 2,
        }
    )


def tabulate_classes(prediction: ClassPrediction) -> pd.DataFrame:
    """The likeliest class of each row, the probability of each class, and how unsure they are."""
    probabilities = {
        f"probability_{label}": column
        for label, column in zip(prediction.classes, prediction.probabilities.T, strict=True)
    }
    return pd.DataFrame(
        {
            "class": prediction.label,
            **probabilities,
            "entropy": prediction.predictive_entropy,
            "mutual_information": prediction.mutual_information,
        }
    )


def named_after(target: str, predictions: pd.DataFrame) -> pd.DataFrame:
    """Predictions with columns named after the target, but for those that are about the row."""
    names = {name: target if name in ("mean", "class") else f"{target}_{name}" for name in predictions.columns}
    return predictions.rename(columns={**names, "familiarity": "familiarity", FLAGS: FLAGS})


# -- flags ------------------------------------------------------------------------------------------------------------


def flag_texts(names: Sequence[str], marks: Sequence[Mapping[str, Mask]], n_rows: int) -> NDArray[Any]:
    """Flags of each row, such as "missing:area;unseen:city"; empty where there is nothing to say."""
    texts = np.full(n_rows, "", dtype=object)
    for name, found in zip(names, marks, strict=True):
        for kind, rows in found.items():
            texts[rows] += f"{SEPARATOR}{kind}:{name.replace(SEPARATOR, ' ')}"
    flagged = np.flatnonzero(texts)
    texts[flagged] = [text.removeprefix(SEPARATOR) for text in texts[flagged]]
    return texts


def mark_not_finite(predictions: pd.DataFrame) -> pd.DataFrame:
    """The predictions, with a flag where some number is not finite: it left the range of floating-point numbers."""
    numbers = predictions.select_dtypes("number").to_numpy(dtype=np.float64)
    rows = ~np.isfinite(numbers).all(1)
    if not rows.any():
        return predictions
    flags = predictions[FLAGS].to_numpy(dtype=object)
    flags[rows] = [text + (SEPARATOR if text else "") + NOT_FINITE for text in flags[rows]]
    return predictions.assign(**{FLAGS: flags})


def split_flags(text: str) -> list[str]:
    """The flags of a row one by one."""
    return text.split(SEPARATOR) if text else []

"""What a row of predictions says about the cells it was made from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

__all__ = ["FLAGS", "NOT_FINITE", "flag_texts", "mark_not_finite", "split_flags"]

Mask = NDArray[np.bool_]

FLAGS = "flags"
NOT_FINITE = "not-finite"
SEPARATOR = ";"


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

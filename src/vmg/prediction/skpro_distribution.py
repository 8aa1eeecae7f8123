"""Predictions as distributions of skpro, whose metrics and plots then take them; see ``NumberPrediction.to_skpro``."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from skpro.distributions.base import BaseDistribution

from vmg.prediction.base import Array, NumberPrediction

__all__ = ["PredictedDistribution"]


class PredictedDistribution(BaseDistribution):
    """The distribution of one output at N rows, as a table of N rows and one column."""

    _tags = {  # noqa: RUF012 - skpro's convention
        "capabilities:exact": ["mean", "var", "pdf", "log_pdf", "cdf", "ppf"],
        "capabilities:approx": ["energy", "pdfnorm"],
        "distr:measuretype": "mixed",
    }

    def __init__(self, prediction: NumberPrediction, index: Any = None, columns: Any = None) -> None:
        if prediction.n_outputs != 1:
            raise ValueError(f"a distribution of skpro is of one output; got {prediction.n_outputs}")
        self.prediction = prediction
        rows = pd.RangeIndex(len(prediction)) if index is None else index
        super().__init__(index=rows, columns=["y"] if columns is None else columns)

    def _iloc(self, rowidx: Any = None, colidx: Any = None) -> PredictedDistribution:
        rows = np.arange(len(self.prediction)) if rowidx is None else np.atleast_1d(np.asarray(rowidx))
        return PredictedDistribution(self.prediction.take(rows), self.index.take(rows), self.columns)

    _iat = _iloc

    def _mean(self) -> Array:
        return self.prediction.mean.reshape(-1, 1)

    def _var(self) -> Array:
        return self.prediction.var.reshape(-1, 1)

    def _log_pdf(self, x: Array) -> Array:
        return self.prediction.log_prob(x)[:, None]

    def _pdf(self, x: Array) -> Array:
        return self.prediction.pdf(x)[:, None]

    def _cdf(self, x: Array) -> Array:
        return self.prediction.cdf(x).reshape(-1, 1)

    def _ppf(self, p: Array) -> Array:
        ends = self.prediction.interval_at(np.abs(1 - 2 * p)).reshape(-1, 1, 2)
        return np.where(p < 0.5, ends[..., 0], ends[..., 1])

"""Predicted classes: their probabilities under draws of a network, and how far these disagree."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from vmg.metrics import label_log_prob
from vmg.prediction.base import Array, Rows, draw_candidates

__all__ = ["ClassPrediction", "class_mixture"]

CANDIDATE_SEED = 0


@dataclass(frozen=True)
class ClassPrediction:
    """Class probabilities of N rows under S posterior draws.

    Parameters
    ----------
    samples : array [S, N, K]
        Probabilities of each draw.
    classes : array [K]
        The classes, in order.
    """

    samples: Array
    classes: NDArray[Any]

    def __len__(self) -> int:
        return self.samples.shape[1]

    def __getitem__(self, rows: Any) -> ClassPrediction:
        """Some rows of the prediction, by a number, a slice, positions or a mask."""
        return ClassPrediction(self.samples[:, np.atleast_1d(np.arange(len(self))[rows])], self.classes)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(n_rows={len(self)}, n_classes={len(self.classes)})"

    @cached_property
    def probabilities(self) -> Array:
        """Mean over draws, [N, K]; rows sum to one."""
        mean = self.samples.mean(0)
        return mean / mean.sum(-1, keepdims=True)

    @property
    def label(self) -> NDArray[Any]:
        """The most probable class."""
        return self.classes[self.probabilities.argmax(-1)]

    @property
    def predictive_entropy(self) -> Array:
        """All uncertainty about the class, in nats: the entropy of the mean."""
        return special.entr(self.probabilities).sum(-1)

    @property
    def expected_entropy(self) -> Array:
        """Its aleatoric part: the mean entropy of the draws."""
        return special.entr(self.samples).sum(-1).mean(0)

    @property
    def mutual_information(self) -> Array:
        """Its epistemic part: how much knowing the weights would tell about the class."""
        return np.maximum(self.predictive_entropy - self.expected_entropy, 0.0)

    def log_prob(self, y: ArrayLike) -> Array:
        """log p(y) of each row."""
        labels = np.asarray(y)
        if labels.shape != (len(self),):
            raise ValueError(f"y must have one label for each of {len(self)} rows; got shape {labels.shape}")
        position = np.searchsorted(self.classes, labels).clip(max=len(self.classes) - 1)
        known = self.classes[position] == labels
        if not known.all():
            raise ValueError(f"y must be among the classes {self.classes}; got {np.unique(labels[~known])}")
        return label_log_prob(self.probabilities, position)


def class_mixture(whole: ClassPrediction, parts: ClassPrediction, rows: Rows, weights: Array) -> ClassPrediction:
    """Class probabilities of N rows, of which G are mixtures over K candidates: draws go over networks and candidates.

    So what is unknown of a row becomes disagreement. ``rows`` [G], ``weights`` [G, K] and the G K rows of ``parts`` are
    as in :class:`~vmg.prediction.MixturePrediction`.
    """
    samples = whole.samples.copy()  # [S, N, C]
    each = parts.samples.reshape(len(samples), *weights.shape, -1)
    order = np.random.default_rng(CANDIDATE_SEED).permutation(len(samples))
    place = (order + 0.5) / len(samples)  # evenly spread over the weights, and the same for each row
    samples[:, rows] = draw_candidates(each, weights, place[:, None])
    return ClassPrediction(samples, whole.classes)

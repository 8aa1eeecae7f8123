"""The digits of MNIST as the paper splits them, images of other sets, and scores of a classifier's uncertainty."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vmg import metrics
from vmg.nn.mlp import MLP
from vmg.prediction import ClassPrediction
from vmg_paper.data import load_images

__all__ = [
    "REJECTION_RATES",
    "UNKNOWN",
    "Digits",
    "Rows",
    "load_digits",
    "mean_probabilities",
    "rejection_errors",
    "score",
]

N_VALIDATION = 10_000  # the last rows of the training set [LW16, §4.2]
UNKNOWN = ("notmnist", "fashion-mnist")  # letters in many fonts, and clothes


@dataclass(frozen=True)
class Rows:
    """Images [N, 784] and their classes [N]."""

    x: Tensor
    y: Tensor

    @property
    def labels(self) -> NDArray[np.int64]:
        return self.y.numpy()


@dataclass(frozen=True)
class Digits:
    """The three parts of MNIST, and test images of other sets, by name."""

    train: Rows
    validation: Rows
    test: Rows
    unknown: dict[str, Tensor]

    @property
    def all_training(self) -> Rows:
        """Every image that is not for testing, the validation images too."""
        return Rows(torch.cat([self.train.x, self.validation.x]), torch.cat([self.train.y, self.validation.y]))

    def centred(self) -> Digits:
        """All images less the mean training image."""
        mean = self.train.x.mean(0)
        train, validation, test = (Rows(part.x - mean, part.y) for part in (self.train, self.validation, self.test))
        return Digits(train, validation, test, {name: x - mean for name, x in self.unknown.items()})


def load_digits() -> Digits:
    """Pixels are grey levels over 255, in [0, 1], and nothing else is done to them.

    The paper has no preprocessing or augmentation; the authors' code reads files whose pixels are in [0, 1] already.
    """
    x, y = map(torch.from_numpy, load_images("mnist", "train"))
    test_x, test_y = map(torch.from_numpy, load_images("mnist", "test"))
    return Digits(
        Rows(x[:-N_VALIDATION], y[:-N_VALIDATION]),
        Rows(x[-N_VALIDATION:], y[-N_VALIDATION:]),
        Rows(test_x, test_y),
        {name: torch.from_numpy(load_images(name, "test")[0]) for name in UNKNOWN},
    )


REJECTION_RATES = (0, 1, 2, 5, 10, 20)  # percent
ROWS_AT_ONCE = 2_000  # whose activations are in memory together

Array = NDArray[np.float64]


@torch.no_grad()
def mean_probabilities(network: MLP, x: Tensor) -> Array:
    """Probabilities of the mean network, [N, K]."""
    exact = copy.deepcopy(network).double()
    outputs = [exact.forward_mean(rows.double()) for rows in x.split(ROWS_AT_ONCE)]
    return torch.cat(outputs).softmax(-1).numpy()


def rejection_errors(uncertainty: Array, correct: NDArray[np.bool_]) -> list[float]:
    """Error in percent on what is left once the most uncertain are rejected, at each of the rejection rates."""
    _, accuracy = metrics.rejection_curve(uncertainty, correct)
    return [100 * (1 - float(accuracy[rate * len(correct) // 100])) for rate in REJECTION_RATES]


def score(known: ClassPrediction, labels: NDArray[np.int64], unknown: Mapping[str, ClassPrediction]) -> dict[str, Any]:
    """All scores of predictions for known classes, and how well doubt tells other images from them.

    ``auroc`` has for each set of other images the area under the curve of the predictive entropy and of the mutual
    information, which is None where there is only one draw.
    """
    probabilities = known.probabilities
    return {
        "error_percent": 100 * metrics.error_rate(probabilities, labels),
        "log_likelihood": metrics.log_likelihood(known.log_prob(labels)),
        "ece": metrics.expected_calibration_error(probabilities, labels),
        "brier": metrics.brier_score(probabilities, labels),
        "auroc": {
            name: {
                "entropy": metrics.auroc(known.predictive_entropy, other.predictive_entropy),
                "mutual_information": None
                if len(known.samples) == 1
                else metrics.auroc(known.mutual_information, other.mutual_information),
            }
            for name, other in unknown.items()
        },
        "rejection": {
            "rates_percent": list(REJECTION_RATES),
            "error_percent": rejection_errors(known.predictive_entropy, known.label == labels),
        },
    }

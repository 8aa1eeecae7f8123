"""The digits of MNIST as the paper splits them, and images of other things that a network should doubt."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vmg_paper.data import load_images

__all__ = ["UNKNOWN", "Digits", "Rows", "load_digits"]

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

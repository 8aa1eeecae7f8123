"""Ensembles: what those of numbers, of other likelihoods and of classes have in common."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vmg.fit.calibration import HeldOutPredictions
from vmg.fit.design import Design, InputRange, Size, squash
from vmg.fit.trainer import HeldOutRows, Members, train_members
from vmg.training import Callback, History

__all__ = ["Ensemble", "TrainedMembers", "rows_to_condition_on", "train_ensemble"]

Array = NDArray[np.float64]
Kind = TypeVar("Kind", bound=Members)

ROWS_OF_POSTERIOR = 20_000  # at most, that output layers without a closed form are conditioned on at once


@dataclass(frozen=True)
class Ensemble(Generic[Kind]):
    """Members conditioned on all rows."""

    members: Kind
    input_range: InputRange

    def relevance(self) -> Array:
        """How strongly each input can move the first layer, [D]."""
        return self.members.features.relevance().double().numpy()

    @torch.no_grad()
    def _function_factor(self, x: Array, mean: Tensor, root: Tensor, scale: Array, inflation: Array) -> Array:
        """F [K, N, C] with FᵀF the covariance between rows of each output's function.

        Output weights have means [E, D, C] and precisions with roots [E, D, D], in units of a squared ``scale`` [E, C].
        ``inflation`` [C] is the factor of all variances.
        """
        soft = squash(x)
        phi = self.members.features(torch.as_tensor(soft, dtype=torch.float64))
        centres = (phi @ mean).numpy()
        n_members = len(centres)
        between = (centres - centres.mean(0)) / math.sqrt(max(n_members - 1, 1))
        half = torch.linalg.solve_triangular(root, phi.mT, upper=False).numpy()  # [E, D, N]
        own = half[..., None] * (scale / math.sqrt(n_members))[:, None, None]
        factor = np.sqrt(self.input_range.extrapolation_factor(soft))[:, None]
        return np.concatenate([between, own.reshape(-1, *own.shape[2:])]) * np.sqrt(inflation) * factor


@dataclass(frozen=True)
class TrainedMembers(Generic[Kind]):
    """Members after training, and what the rest of a fit goes on with."""

    members: Kind  # in double precision, so that a row gets the same numbers whatever others come with it
    x: Array  # squashed inputs, [N, D]
    design: Design
    held: HeldOutRows | None  # None where there are too few rows to hold any out
    history: History
    rng: np.random.Generator
    generator: torch.Generator

    def held_out(self, held: HeldOutRows) -> HeldOutPredictions:
        """What members said of rows before they saw them."""
        said = held.predictions
        return HeldOutPredictions.of(said.loc, said.variance, self.design, self.x, held.index)


def train_ensemble(
    make_members: Callable[[], Kind],
    x: Array,
    y: Tensor,
    weight: Array | None,
    *,
    size: Size,
    seed: int,
    callbacks: Sequence[Callback] = (),
) -> TrainedMembers[Kind]:
    """Choose the rows that members must not see, and train new members on rows in standard units, x [N, D]."""
    rng = np.random.default_rng(seed)
    generator = torch.Generator().manual_seed(seed)
    soft = squash(x)
    design = Design.choose(soft, size.n_members, rng)
    with torch.random.fork_rng(devices=[]):
        members = make_members()
    members.features.reset_parameters(generator)
    held, history = train_members(
        members,
        torch.as_tensor(soft, dtype=torch.float32),
        y,
        design.held_out,
        design.stopping_members,
        weight=None if weight is None else torch.as_tensor(weight, dtype=torch.float32),
        plan=size.plan,
        generator=generator,
        callbacks=callbacks,
    )
    return TrainedMembers(members.double(), soft, design, held, history, rng, generator)


def rows_to_condition_on(weight: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Positions [n] of the rows that stand for all N, and their weights [n]; weight: of all rows, [N]."""
    n_rows = len(weight)
    some = torch.arange(n_rows)
    if n_rows > ROWS_OF_POSTERIOR:
        some = torch.randperm(n_rows, generator=generator)[:ROWS_OF_POSTERIOR]
    return some, weight[some] * (n_rows / len(some))

"""Ensembles: what those of numbers, of other likelihoods and of classes have in common."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vmg.fit.calibration import HeldOutPredictions
from vmg.fit.design import Design, InputRange, Size, squash, threads_for
from vmg.fit.members import GroupRows, Members
from vmg.fit.trainer import HeldOutRows, train_members
from vmg.training import Callback, History

__all__ = ["Ensemble", "FitRows", "TrainedMembers", "group_rows", "rows_to_condition_on", "train_ensembles"]

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
        with threads_for(self.members.features.work(len(x))):
            phi = self.members.features(torch.as_tensor(soft, dtype=torch.float64))
            centres = (phi @ mean).numpy()
            half = torch.linalg.solve_triangular(root, phi.mT, upper=False).numpy()  # [E, D, N]
        n_members = len(centres)
        between = (centres - centres.mean(0)) / math.sqrt(max(n_members - 1, 1))
        own = half[..., None] * (scale / math.sqrt(n_members))[:, None, None]
        factor = np.sqrt(self.input_range.extrapolation_factor(soft))[:, None]
        return np.concatenate([between, own.reshape(-1, *own.shape[2:])]) * np.sqrt(inflation) * factor


@dataclass(frozen=True)
class FitRows:
    """Rows of one fit in standard units: inputs [N, D], targets [N, ...], weights [N] and the seed of its draws."""

    x: Array
    y: NDArray[Any]
    weight: Array | None
    seed: int


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
        """Predictions that members made of rows before they saw them."""
        said = held.predictions
        return HeldOutPredictions.of(said.loc, said.variance, self.design, self.x, held.index)


def train_ensembles(
    make_members: Callable[[], Kind], fits: Sequence[FitRows], *, size: Size, callbacks: Sequence[Callback] = ()
) -> list[TrainedMembers[Kind]]:
    """Choose for each fit the rows that members must not see, and train new members of all fits at once."""
    random = [(np.random.default_rng(fit.seed), torch.Generator().manual_seed(fit.seed)) for fit in fits]
    inputs = [squash(fit.x) for fit in fits]
    designs = [
        Design.choose(x, size.n_members, rng, fit.y) for x, fit, (rng, _) in zip(inputs, fits, random, strict=True)
    ]
    with torch.random.fork_rng(devices=[]):
        members = [make_members() for _ in fits]
    rows = []
    for one, fit, x, design, (_, generator) in zip(members, fits, inputs, designs, random, strict=True):
        one.features.reset_parameters(generator)
        rows.append(group_rows(x, fit.y, fit.weight, design, generator))
    trained = train_members(members, rows, plan=size.plan, callbacks=callbacks)
    for fitted, design in zip(trained, designs, strict=True):
        fitted.history.notes = design.notes
    return [
        TrainedMembers(one.members.double(), x, design, one.held, one.history, *sources)
        for one, x, design, sources in zip(trained, inputs, designs, random, strict=True)
    ]


def group_rows(
    x: Array, y: NDArray[Any], weight: Array | None, design: Design, generator: torch.Generator
) -> GroupRows:
    """Rows as training takes them, in single precision."""
    targets = torch.as_tensor(y)
    return GroupRows(
        torch.as_tensor(x, dtype=torch.float32),
        targets.float() if targets.is_floating_point() else targets,
        torch.ones(len(x)) if weight is None else torch.as_tensor(weight, dtype=torch.float32),
        design.held_out,
        design.stopping_members,
        generator,
    )


def rows_to_condition_on(weight: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Positions [n] of the rows that stand for all N, and their weights [n]; weight: of all rows, [N]."""
    n_rows = len(weight)
    some = torch.arange(n_rows)
    if n_rows > ROWS_OF_POSTERIOR:
        some = torch.randperm(n_rows, generator=generator)[:ROWS_OF_POSTERIOR]
    return some, weight[some] * (n_rows / len(some))

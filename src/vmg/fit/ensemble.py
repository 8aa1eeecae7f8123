"""What every ensemble begins with: rows to hold out of each member, and members that were trained without them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vmg.fit.design import Design
from vmg.fit.members import HeldOutRows, Members, train_members
from vmg.fit.scaling import soften
from vmg.fit.size import Size
from vmg.training import Callback, History

__all__ = ["TrainedMembers", "rows_to_condition_on", "train_ensemble"]

Array = NDArray[np.float64]
Kind = TypeVar("Kind", bound=Members)

ROWS_OF_POSTERIOR = 20_000  # at most, that output layers without a closed form are conditioned on at once


@dataclass(frozen=True)
class TrainedMembers(Generic[Kind]):
    """Members after training, and what the rest of a fit goes on with."""

    members: Kind  # in double precision, so that a row gets the same numbers whatever others come with it
    soft: Array  # inputs, far ones drawn in, [N, D]
    design: Design
    held: HeldOutRows | None  # None where there are too few rows to hold any out
    history: History
    rng: np.random.Generator
    generator: torch.Generator


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
    soft = soften(x)
    design = Design.choose(soft, size.n_members, rng)
    with torch.random.fork_rng(devices=[]):
        members = make_members()
    members.features.reset_parameters(generator)
    held, history = train_members(
        members,
        torch.as_tensor(soft, dtype=torch.float32),
        y,
        design.held_out,
        design.judged,
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

"""The rows that members hold out: members in groups, each group without its own fold of rows or region of inputs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vmg.fit.held_out import random_folds, regions
from vmg.fit.scaling import InputRange

__all__ = ["Design", "Group"]

FOLDS = 4  # at least, so that a member sees three quarters of the rows
REGION_SHARE = 0.25
MIN_ROWS = 10  # fewer rows are not worth holding out


@dataclass(frozen=True)
class Group:
    """Members that do not see the same rows."""

    members: NDArray[np.int64]
    held_out: NDArray[np.bool_]  # [N]
    region: bool


@dataclass(frozen=True)
class Design:
    """Held-out rows of every member.

    Two members share a group where there are enough, so that their disagreement on rows that neither has seen is
    known: member e is in group e mod G. A third of the groups hold out a region, the others random folds.
    """

    groups: tuple[Group, ...]
    n_members: int
    n_rows: int

    @classmethod
    def choose(cls, x: NDArray[np.float64], n_members: int, rng: np.random.Generator) -> Design:
        """Choose groups for standardised rows x [N, D]."""
        n_rows = len(x)
        if n_rows < MIN_ROWS:
            return cls((), n_members, n_rows)
        n_groups = max(1, n_members // 2)
        n_regions = n_groups // 3
        n_folds = n_groups - n_regions
        folds = random_folds(n_rows, max(FOLDS, n_folds), rng)[:n_folds]
        apart = regions(x, n_regions, REGION_SHARE, rng)
        groups = [
            Group(np.arange(g, n_members, n_groups), held_out, g >= n_folds)
            for g, held_out in enumerate([*folds, *apart])
        ]
        return cls(tuple(groups), n_members, n_rows)

    @property
    def held_out(self) -> NDArray[np.bool_]:
        """Rows that each member must not see, [E, N]."""
        whole = np.zeros((self.n_members, self.n_rows), dtype=np.bool_)
        for group in self.groups:
            whole[group.members] = group.held_out
        return whole

    def remoteness(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """How remote rows x [N, D] are from those that each group sees, [G, N]."""
        return np.stack([InputRange.of(x[~group.held_out]).remoteness(x) for group in self.groups])

    @property
    def judged(self) -> list[int]:
        """Members whose held-out rows are like the others, and so say when to stop."""
        return [int(member) for group in self.groups if not group.region for member in group.members]

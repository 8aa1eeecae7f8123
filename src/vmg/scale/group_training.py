"""Many small groups fitted at once: the members of all of them are replicas in one module.

A small network spends its time in the bookkeeping of a step, not in arithmetic. So groups of about the same size are
padded to the longest with rows of weight zero, and the E members of G groups train as E·G replicas, each on rows of
its own. A group stops when its own held-out rows say so, and leaves the batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vmg.fit.design import Design, TrainingPlan
from vmg.fit.gaussian import SCORE_DEGREES, MemberPredictions, RegressionMembers
from vmg.fit.trainer import CHECK_EVERY, WARM_UP, Adam
from vmg.math.evidence import LinearPosterior, condition_on_rows
from vmg.math.linalg import NotPositiveDefiniteError

__all__ = ["GroupRows", "TrainedGroup", "train_groups"]

Array = NDArray[np.float64]
State = dict[str, Tensor]

KEPT_SHARE = 0.85  # of the groups in a batch that still train; with fewer the others are taken out


@dataclass(frozen=True)
class GroupRows:
    """Softened inputs [n, D] and targets [n], in standard units, and the seed of the group's own random numbers."""

    x: Array
    y: Array
    seed: int


@dataclass(frozen=True)
class TrainedGroup:
    """Members conditioned on all rows of their group, and what they said of rows before they saw them."""

    members: RegressionMembers
    design: Design
    held_out: MemberPredictions | None
    n_steps: int


class _ReplicaRows(NamedTuple):
    """Rows of R replicas: x [R, n, D], y [R, n, 1] and weights [R, n], zero where a replica has fewer rows."""

    x: Tensor
    y: Tensor
    weight: Tensor


@dataclass(frozen=True)
class _Batch:
    """Rows of G groups, padded: x [G, N, D], y [G, N, 1]; their weights in E members, in all and in parts [E, G, N]."""

    x: Tensor
    y: Tensor
    weight: Tensor
    seen: Tensor
    stopping: Tensor

    def take(self, groups: Tensor) -> _Batch:
        return _Batch(
            self.x[groups],
            self.y[groups],
            self.weight[:, groups],
            self.seen[:, groups],
            self.stopping[:, groups],
        )

    def flat(self, rows: Tensor) -> Tensor:
        """Rows of each group for each member, [E·G, ...]."""
        return rows.expand(len(self.weight), *rows.shape).flatten(0, 1)

    def all_rows(self) -> _ReplicaRows:
        """The rows of every replica."""
        return _ReplicaRows(self.flat(self.x), self.flat(self.y), self.weight.flatten(0, 1))

    def seen_rows(self) -> _ReplicaRows:
        """Those that each replica sees, in their order: a step takes no time for the others."""
        seen = self.seen.flatten(0, 1)
        n_rows = int((seen > 0).sum(-1).max())
        order = torch.argsort(seen == 0, dim=-1, stable=True)[:, :n_rows]
        x, y = (
            part.gather(1, order.unsqueeze(-1).expand(-1, -1, part.shape[-1]))
            for part in (self.flat(self.x), self.flat(self.y))
        )
        return _ReplicaRows(x, y, seen.gather(1, order))


def train_groups(
    groups: Sequence[GroupRows],
    *,
    hidden: Sequence[int],
    activations: Sequence[str],
    n_members: int,
    plan: TrainingPlan,
) -> list[TrainedGroup]:
    """Train members of every group; the same as one group after the other, up to rounding."""
    designs = [Design.choose(group.x, n_members, np.random.default_rng(group.seed)) for group in groups]
    batch = _pad(groups, designs, n_members)
    n_groups, n_inputs = len(groups), groups[0].x.shape[1]

    def make(n: int) -> RegressionMembers:
        with torch.random.fork_rng(devices=[]):
            return RegressionMembers(n_inputs, hidden, 1, activations, n_members * n)

    members = make(n_groups)
    members.load_state_dict(_first_draws(groups, members, n_members, make(1)))
    run = _Run(members, batch, n_members, make)
    run.train(plan)
    held_out = _predict_held_out(members, batch)
    run.finish(plan)
    members.double()  # from here on, so that a row gets the same numbers whatever others come with it
    members.head.forget()
    with torch.no_grad():
        phi = members.features(batch.flat(batch.x.double()))
        members.head.update(phi, batch.flat(batch.y.double()), batch.weight.flatten(0, 1).double())
    return [
        TrainedGroup(
            _slice(members, k, n_groups, n_members, make(1)),
            design,
            _unpad(held_out, k, n_groups, len(group.y)) if design.groups else None,
            int(run.n_steps[k]),
        )
        for k, (group, design) in enumerate(zip(groups, designs, strict=True))
    ]


def _pad(groups: Sequence[GroupRows], designs: Sequence[Design], n_members: int) -> _Batch:
    n_rows = max(len(group.y) for group in groups)
    x = torch.zeros(len(groups), n_rows, groups[0].x.shape[1])
    y = torch.zeros(len(groups), n_rows, 1)
    weight, seen, stopping_members = (torch.zeros(n_members, len(groups), n_rows) for _ in range(3))
    for k, (group, design) in enumerate(zip(groups, designs, strict=True)):
        n = len(group.y)
        x[k, :n], y[k, :n, 0] = torch.as_tensor(group.x), torch.as_tensor(group.y)
        hidden_rows = torch.as_tensor(design.held_out)
        weight[:, k, :n], seen[:, k, :n] = 1.0, (~hidden_rows).float()
        stopping_members[design.stopping_members, k, :n] = hidden_rows[design.stopping_members].float()
    return _Batch(x, y, weight, seen, stopping_members)


def _first_draws(
    groups: Sequence[GroupRows], members: RegressionMembers, n_members: int, one: RegressionMembers
) -> State:
    """Anchors of every group from its own seed, so that it starts the same in any batch."""
    state = {name: value.clone() for name, value in members.state_dict().items()}
    for k, group in enumerate(groups):
        one.features.reset_parameters(torch.Generator().manual_seed(group.seed))
        for name, value in one.state_dict().items():
            state[name].unflatten(0, (n_members, len(groups)))[:, k] = value
    return state


def _slice(
    members: RegressionMembers, k: int, n_groups: int, n_members: int, one: RegressionMembers
) -> RegressionMembers:
    """The members of group k."""
    state = {name: v.unflatten(0, (n_members, n_groups))[:, k].clone() for name, v in members.state_dict().items()}
    one.double().load_state_dict(state)
    return one.eval()


class _Run:
    """Steps of a batch from which groups leave one after the other."""

    def __init__(
        self, members: RegressionMembers, batch: _Batch, n_members: int, make: Callable[[int], RegressionMembers]
    ) -> None:
        self._members, self._whole, self._E = members, batch, n_members
        self._make = make
        n_groups = len(batch.x)
        self._best = torch.full((n_groups,), -math.inf, dtype=torch.float64)
        self._best_step = torch.zeros(n_groups, dtype=torch.int64)
        self._kept: State = {name: value.clone() for name, value in members.state_dict().items()}
        self.n_steps = torch.zeros(n_groups, dtype=torch.int64)  # that a group's members have taken

    def train(self, plan: TrainingPlan) -> None:
        """Train every group until its held-out rows are not predicted better, and put its best members in place."""
        active = torch.arange(len(self._whole.x))
        current, batch = self._members, self._whole
        rows, adam = batch.seen_rows(), Adam(current.parameters())
        for step in range(plan.max_steps):
            if step % CHECK_EVERY == 0:
                self._check(current, batch, active, step)
                going = step - self._best_step[active] < plan.patience
                going &= _finite_groups(current, self._E)
                if not going.any():
                    break
                if going.float().mean() <= KEPT_SHARE:
                    current, adam = self._keep(current, adam, going)
                    active, batch = active[going], batch.take(going.nonzero().squeeze(-1))
                    rows = batch.seen_rows()
            if not _step(current, rows, adam, plan.rate * min(1.0, (step + 1) / WARM_UP)):
                break
        self._members.load_state_dict(self._kept)

    def _check(self, current: RegressionMembers, batch: _Batch, active: Tensor, step: int) -> None:
        _, _, error = _held_out_posterior(current, batch)
        score = _score(error, batch)
        better = score > self._best[active]
        places = active[better]
        self._best[places], self._best_step[places] = score[better], step
        for name, value in current.state_dict().items():
            by_group = value.unflatten(0, (self._E, len(active)))
            self._kept[name].unflatten(0, (self._E, len(self._best)))[:, places] = by_group[:, better]

    def _keep(self, current: RegressionMembers, adam: Adam, going: Tensor) -> tuple[RegressionMembers, Adam]:
        """The groups that go on, in a smaller module, with the optimiser's memory of them."""

        def cut(value: Tensor) -> Tensor:
            kept: Tensor = value.unflatten(0, (self._E, len(going)))[:, going]
            return kept.flatten(0, 1).clone()

        fewer = self._make(int(going.sum()))
        fewer.load_state_dict({name: cut(value) for name, value in current.state_dict().items()})
        optimiser = Adam(fewer.parameters())
        optimiser.means, optimiser.squares = [cut(m) for m in adam.means], [cut(s) for s in adam.squares]
        optimiser.counts = [count.clone() for count in adam.counts]
        return fewer, optimiser

    def finish(self, plan: TrainingPlan) -> None:
        """Take the last steps of all groups, on all rows, at a rate that falls to zero."""
        rows, adam = self._whole.all_rows(), Adam(self._members.parameters())
        for step in range(plan.refit_steps):
            if not _step(self._members, rows, adam, plan.rate * (1 - step / plan.refit_steps)):
                break
        self.n_steps = self._best_step + plan.refit_steps


def _step(members: RegressionMembers, rows: _ReplicaRows, adam: Adam, rate: float) -> bool:
    """Move all members up their log posterior once; False where it cannot be taken."""
    adam.zero_grad()
    try:
        total, _ = members.log_posterior(*rows)
    except NotPositiveDefiniteError:
        return False
    (-total / rows.weight.sum(-1)).sum().backward()
    adam.step(rate)
    return True


@torch.no_grad()
def _predict_held_out(members: RegressionMembers, batch: _Batch) -> MemberPredictions:
    """The same as :meth:`RegressionMembers.predict_held_out`, where every replica has rows of its own."""
    phi, posterior, _ = _held_out_posterior(members, batch)
    noise = posterior.noise_variance
    variance = posterior.relative_variance(phi).unsqueeze(-1) * noise.unsqueeze(-2)
    return MemberPredictions(*(part.double().numpy() for part in (phi @ posterior.mean, variance, noise)))


@torch.no_grad()
def _held_out_posterior(members: RegressionMembers, batch: _Batch) -> tuple[Tensor, LinearPosterior, Tensor]:
    """Features of all rows, each replica's posterior from the rows it sees, and its errors at all rows [E·G, N, 1]."""
    x, y, _ = batch.all_rows()
    phi, seen = members.features(x), batch.seen.flatten(0, 1)
    prior = members.head.prior_precision(), members.head.noise_prior
    return phi, *condition_on_rows(phi, y, seen, *prior)


def _unpad(found: MemberPredictions, k: int, n_groups: int, n_rows: int) -> MemberPredictions:
    """What the members of group k said of its rows."""
    loc, variance, noise = (part.reshape(-1, n_groups, *part.shape[1:])[:, k] for part in found)
    return MemberPredictions(loc[:, :n_rows], variance[:, :n_rows], noise)


def _score(errors: Tensor, batch: _Batch) -> Tensor:
    """The score of each group [G], as in :meth:`RegressionMembers.score`; without held-out rows no step is better."""
    error = errors.double().squeeze(-1).unflatten(0, batch.weight.shape[:2])
    share = batch.stopping.double()
    share = share / share.sum((0, 2)).clamp_min(1e-12)[:, None]
    squared = error.square()
    nu = SCORE_DEGREES
    scale = (share * squared).sum((0, 2)) + 1e-12
    for _ in range(20):
        ratio = squared / scale[:, None]
        scale = (share * ((nu + 1) / (nu + ratio) * squared)).sum((0, 2)) + 1e-12
    density = -0.5 * scale.log()[:, None] - 0.5 * (nu + 1) * torch.log1p(squared / (nu * scale[:, None]))
    return torch.nan_to_num((share * density).sum((0, 2)), nan=-math.inf)


def _finite_groups(members: RegressionMembers, n_members: int) -> Tensor:
    """Which groups have finite parameters, [G]."""
    finite = [torch.isfinite(p).flatten(1).all(1).unflatten(0, (n_members, -1)).all(0) for p in members.parameters()]
    return torch.stack(finite).all(0)

"""Training the members of ensembles, each without the rows that it must not see.

One or many groups of rows train at once, each with an ensemble of its own. A small network spends its time in the
bookkeeping of a step, not in arithmetic, so the members of all groups are replicas in one module. A group stops when
its own held-out rows say so, and leaves the batch.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vmg.fit.design import TrainingPlan
from vmg.fit.members import Batch, GroupRows, Members
from vmg.fit.shared_members import MemberShard
from vmg.math.linalg import NotPositiveDefiniteError
from vmg.training import Callback, History, Progress

__all__ = ["Adam", "HeldOutRows", "MemberRun", "Trained", "train_members"]

Kind = TypeVar("Kind", bound=Members)

CHECK_EVERY = 10  # steps between two looks at the held-out rows
CHECKED_ROWS = 4096  # at most, of which a member's held-out ones are scored
WARM_UP = 10  # steps
BETA1, BETA2, EPSILON = 0.9, 0.99, 1e-8  # of Adam


@dataclass(frozen=True)
class HeldOutRows:
    """Positions [n] of the rows that were checked, and what members predicted there before they saw them."""

    index: NDArray[np.int64]
    predictions: Any


@dataclass(frozen=True)
class Trained(Generic[Kind]):
    """Members of one group after training; ``held`` is None where no rows were held out."""

    members: Kind
    held: HeldOutRows | None
    history: History


def train_members(
    members: Sequence[Kind], groups: Sequence[GroupRows], *, plan: TrainingPlan, callbacks: Sequence[Callback] = ()
) -> list[Trained[Kind]]:
    """Train the members of each group on its rows, in place.

    A step of several groups takes all rows, however many the plan allows in a batch. Inside
    :func:`vmg.fit.shared_members.members_shared` each process trains its own members of a single group, and all end
    with all; the history is that of a process's own.
    """
    shard = MemberShard(len(groups[0].held_out), shared=len(groups) == 1)
    whole, batch = Members.join(members), Batch.of(groups)
    part = whole if shard.alone else whole.part(shard.own)
    run = MemberRun(part, batch.of_members(shard.own), plan, groups[0].generator, callbacks)
    blind = torch.tensor([bool(group.held_out.any()) for group in groups])
    held = _train_blind(run, blind, [len(group.x) for group in groups], shard)
    for some, n_steps in ((blind, plan.refit_steps), (~blind, plan.refit_steps + WARM_UP)):
        if some.any():
            _train_last(run, some, n_steps, shard)
    shard.put_together(whole, part)
    if len(groups) > 1:
        _share_out(whole, members)
    return [Trained(*parts) for parts in zip(members, held, run.histories, strict=True)]


@torch.no_grad()
def _share_out(whole: Members, groups: Sequence[Members]) -> None:
    """Give the members of each group their parameters."""
    for k, one in enumerate(groups):
        for own, common in zip(one.parameters(), whole.parameters(), strict=True):
            own.copy_(common.unflatten(0, (-1, len(groups)))[:, k])


def _train_blind(run: MemberRun, blind: Tensor, n_rows: Sequence[int], shard: MemberShard) -> list[HeldOutRows | None]:
    """Train without held-out rows, go back to where these were predicted best, and predict them.

    ``blind`` [G] is True for the groups that hold rows out.
    """
    if not blind.any():
        return [None] * len(blind)
    if not blind.all():
        run.leave_out(~blind)
    run.see_all(False)
    watch, going = _Watch(run, shard), True
    for step in range(run.plan.max_steps):
        if step % CHECK_EVERY == 0 and not watch.goes_on(step):
            break
        going = going and run.step(run.plan.rate * min(1.0, (step + 1) / WARM_UP))
        if not shard.go_on(going, ask=_is_due(step)):
            break
    held = watch.restore(n_rows)
    return [one if there else None for one, there in zip(held, blind.tolist(), strict=True)]


def _train_last(run: MemberRun, some: Tensor, n_steps: int, shard: MemberShard) -> None:
    """Train some groups on all rows, at a rate that falls to zero."""
    if not some.all():
        run.leave_out(~some)
    run.see_all(True)
    going = True
    for step in range(n_steps):
        going = going and run.step(run.plan.rate * (1 - step / n_steps), last=step == n_steps - 1)
        if not shard.go_on(going, ask=_is_due(step)):
            break
    run.gather_all()


def _is_due(step: int) -> bool:
    """Whether processes ask each other after this step if they go on; a message costs as much as a short step."""
    return (step + 1) % CHECK_EVERY == 0


class _Watch:
    """Keeps the members of each group as they were when the group's held-out rows were predicted best."""

    def __init__(self, run: MemberRun, shard: MemberShard) -> None:
        self.run, self.shard = run, shard
        n_rows, n_groups = run.batch.x.shape[1], len(run.histories)
        self.index = torch.arange(n_rows)
        self._some: Batch | None = None
        if run.batch.n_groups == 1 and n_rows > CHECKED_ROWS:
            self.index = torch.randperm(n_rows, generator=run.generator)[:CHECKED_ROWS]
            self._some = run.batch.of_rows(self.index)
        self.best, self.best_step = np.full(n_groups, -np.inf), np.zeros(n_groups, dtype=np.int64)
        self.values = [value.clone() for value in run.whole.optimiser.values]

    @property
    def _checked(self) -> Batch:
        return self._some or self.run.batch

    def _predict(self) -> Any:
        with torch.no_grad():
            own = self.run.members.predict_held_out(*self._checked.inputs(), self._checked.seen.flatten(0, 1))
        return self.shard.all_members(own)

    def goes_on(self, step: int) -> bool:
        """Score the held-out rows; groups leave once theirs have not been predicted better for long enough."""
        run, groups = self.run, self.run.groups.numpy()
        score = run.members.score(self._predict(), self._checked.inputs()[1], self._checked.stopping)
        score = self.shard.first(score)
        better = score > self.best[groups]
        self.best[groups[better]], self.best_step[groups[better]] = score[better], step
        improved = torch.from_numpy(better).nonzero().squeeze(-1)
        kept, now = run.replicas(run.groups[improved], len(self.best)), run.replicas(improved, len(groups))
        for best, value in zip(self.values, run.optimiser.values, strict=True):
            best[kept] = value[now]
        leaving = torch.from_numpy(step - self.best_step[groups] >= run.plan.patience)
        if leaving.all():
            return False
        if leaving.any():
            run.leave_out(leaving)
        return True

    def restore(self, n_rows: Sequence[int]) -> list[HeldOutRows]:
        """Go back to the best members, and give what those of each group predict for its checked rows."""
        self.run.gather_all()
        for value, best in zip(self.run.optimiser.values, self.values, strict=True):
            value.copy_(best)
        predictions, n_groups = self._predict(), len(n_rows)
        if n_groups == 1:
            return [HeldOutRows(self.index.numpy(), predictions)]
        by_group = [part.reshape(-1, n_groups, *part.shape[1:]) for part in predictions]
        held = []
        for k, n in enumerate(n_rows):
            own = type(predictions)(*(part[:, k] for part in by_group))
            held.append(HeldOutRows(np.arange(n), own._replace(loc=own.loc[:, :n], variance=own.variance[:, :n])))
        return held


class _Whole(NamedTuple):
    """All groups of a run, whether they train now or not."""

    members: Members
    batch: Batch
    optimiser: Adam
    groups: Tensor


class MemberRun:
    """Optimiser steps of the groups that train now, and the reports about them."""

    def __init__(
        self,
        members: Members,
        batch: Batch,
        plan: TrainingPlan,
        generator: torch.Generator,
        callbacks: Sequence[Callback],
    ) -> None:
        self.members, self.batch, self.plan = members, batch, plan
        self.optimiser = Adam(members.parameters())
        self.groups = torch.arange(batch.n_groups)  # that train now
        self.whole = _Whole(self.members, self.batch, self.optimiser, self.groups)
        self.histories = [History() for _ in range(batch.n_groups)]
        self.generator, self.callbacks = generator, callbacks
        self.started, self.n_taken = time.perf_counter(), 0
        self.see_all(True)

    def see_all(self, everything: bool) -> None:
        """Let members see all rows, or not those that they hold out."""
        self._sees_all = everything
        self._rows = self.batch.weighted(self.batch.weight if everything else self.batch.seen)

    def step(self, rate: float, *, last: bool = False) -> bool:
        """Move all members up their log posterior once; False where a callback wants no more, or none can move."""
        x, y, weight = self._rows
        if x.dim() == 2 and len(x) > self.plan.batch_rows:  # the rows of a batch stand for all rows
            batch = torch.randint(len(x), (self.plan.batch_rows,), generator=self.generator)
            x, y, weight = x[batch], y[batch], weight[:, batch] * (len(x) / len(batch))
        self.optimiser.zero_grad()
        try:
            total, fit = self.members.log_posterior(x, y, weight)
        except NotPositiveDefiniteError:
            return self._without_failing() and self.step(rate, last=last)
        if not torch.isfinite(total).all():
            return self._without_failing() and self.step(rate, last=last)
        size = weight.sum(-1)
        (-total / size).sum().backward()
        self.optimiser.step(rate)
        self.n_taken += 1
        due = last or self.n_taken % CHECK_EVERY == 0
        return not due or self._report(total / size, fit / size, rate)

    def _report(self, total: Tensor, fit: Tensor, rate: float) -> bool:
        seconds = time.perf_counter() - self.started
        n_steps, n_groups = self.plan.max_steps + self.plan.refit_steps, len(self.groups)
        means = (part.unflatten(0, (-1, n_groups)).mean(0).tolist() for part in (total, fit))
        wants_no_more = False
        for group, taken, objective, fitted in zip(self.groups.tolist(), self.optimiser.count, *means, strict=False):
            progress = Progress(int(taken), n_steps, objective, fitted, fitted - objective, rate, seconds)
            self.histories[group].records.append(progress)
            answers = [callback(progress) for callback in self.callbacks]  # all of them are told
            wants_no_more = wants_no_more or any(answers)
        if wants_no_more:
            for group in self.groups.tolist():
                self.histories[group].stopped = f"stopped by a callback at step {self.histories[group].last.step}"
        return not wants_no_more

    # -- groups that leave the batch ----------------------------------------------------------------------------------

    def replicas(self, groups: Tensor, n_groups: int) -> Tensor:
        """Positions of the replicas of some of ``n_groups`` groups."""
        return torch.arange(len(self.batch.weight) * n_groups).unflatten(0, (-1, n_groups))[:, groups].flatten()

    def leave_out(self, leaving: Tensor) -> None:
        """Go on without some groups; ``leaving`` [G] is True for those."""
        self._keep_state()
        staying = (~leaving).nonzero().squeeze(-1)
        rows, before = self.replicas(staying, len(leaving)), self.optimiser.state
        self.members, self.batch = self.members.part(rows), self.batch.of_groups(staying)
        self.groups, self.optimiser = self.groups[staying], Adam(self.members.parameters())
        for mine, part in zip(self.optimiser.state, before, strict=True):
            mine.copy_(part[rows])
        self.see_all(self._sees_all)

    def gather_all(self) -> None:
        """Go on with all groups again, each as it was when it left."""
        self._keep_state()
        self.members, self.batch, self.optimiser, self.groups = self.whole

    def _keep_state(self) -> None:
        if self.optimiser is not self.whole.optimiser:
            rows = self.replicas(self.groups, len(self.whole.groups))
            for kept, part in zip(self.whole.optimiser.state, self.optimiser.state, strict=True):
                kept[rows] = part

    def _without_failing(self) -> bool:
        """Leave out the groups whose log posterior is not finite; False where no other is left."""
        n_groups = len(self.groups)
        failing = torch.ones(n_groups, dtype=torch.bool)
        for k in range(n_groups if n_groups > 1 else 0):
            members = self.members.part(self.replicas(torch.tensor([k]), n_groups))
            alone = self.batch.of_groups(torch.tensor([k]))
            try:
                total, _ = members.log_posterior(*alone.weighted(alone.weight if self._sees_all else alone.seen))
                failing[k] = not torch.isfinite(total).all()
            except NotPositiveDefiniteError:
                pass
        for group in self.groups[failing].tolist():
            self.histories[group].stopped = "ended where the log posterior was no longer finite"
        if failing.all() or not failing.any():
            return False
        self.leave_out(failing)
        return True


class Adam:
    """Adam on parameters of R replicas, which come first in each; every replica has a count of its own steps.

    ``torch.optim`` would first load a compiler, which takes two seconds.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self._parameters = list(parameters)
        self.values = [parameter.detach() for parameter in self._parameters]  # the same memory
        self.means, self.squares = ([torch.zeros_like(value) for value in self.values] for _ in range(2))
        self.count = np.zeros(len(self.values[0]))

    @property
    def state(self) -> list[Tensor]:
        """Parameters, running means of their gradients and squared gradients, and counts: replicas first, in place."""
        return [*self.values, *self.means, *self.squares, torch.from_numpy(self.count)]

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for parameter in self._parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Move every replica by its gradient; a parameter without one stays."""
        self.count += 1
        factors = -rate / (1 - BETA1**self.count), np.sqrt(1 - BETA2**self.count)
        length, correction = (torch.from_numpy(factor.astype(np.float32)) for factor in factors)
        for parameter, value, mean, square in zip(self._parameters, self.values, self.means, self.squares, strict=True):
            gradient = parameter.grad
            if gradient is None:
                continue
            mean.lerp_(gradient, 1 - BETA1)
            square.mul_(BETA2).addcmul_(gradient, gradient, value=1 - BETA2)
            root = torch.from_numpy(np.sqrt(square.numpy()))  # torch's own square root may be one bit off
            shape = (-1, *[1] * (value.dim() - 1))
            root.div_(correction.view(shape)).add_(EPSILON)
            value.add_((mean * length.view(shape)).div_(root))

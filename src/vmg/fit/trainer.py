"""Training the members of ensembles, each without the rows that it must not see.

One or many groups of rows train at once, each with an ensemble of its own. A small network spends its time in the
bookkeeping of a step, not in arithmetic, so the E members of G groups are E·G replicas in one module: replica e·G + g
is member e of group g. Groups are padded to the longest with rows of weight zero. A group stops when its own held-out
rows say so, and leaves the batch. A single table is the case G = 1.
"""

from __future__ import annotations

import copy
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vmg.fit.calibration import HeldOutPredictions
from vmg.fit.design import Design, Size, TrainingPlan, count_directions, squash
from vmg.math.distributions import Array
from vmg.math.linalg import NotPositiveDefiniteError
from vmg.nn.anchored import AnchoredFeatures
from vmg.training import Callback, History, Progress

__all__ = ["Adam", "FitRows", "GroupRows", "MemberRun", "Members", "Trained", "train_ensembles", "train_members"]

CHECK_EVERY = 10  # steps between two looks at the held-out rows
CHECKED_ROWS = 4096  # at most, of which a member's held-out ones are scored
WARM_UP = 10  # steps
BETA1, BETA2, EPSILON = 0.9, 0.99, 1e-8  # of Adam


# -- members and their rows -------------------------------------------------------------------------------------------


class Members(nn.Module, ABC):
    """Networks that train side by side, with output layers that are conditioned on rows, not trained.

    Every parameter and buffer has the replicas first. Rows are x [n, D], the same for all replicas, or [R, n, D].
    """

    def __init__(
        self, in_features: int, hidden: Sequence[int], activations: Sequence[str], n_members: int, n_directions: int = 0
    ) -> None:
        super().__init__()
        options = {"n_members": n_members, "n_directions": n_directions}
        self.features = AnchoredFeatures(in_features, hidden, activation=activations, **options)

    @abstractmethod
    def log_posterior(self, x: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Log posterior of each replica's hidden layers up to a constant, and the part that is the data's: [R] each."""

    @abstractmethod
    def predict_held_out(self, x: Tensor, y: Tensor, seen: Tensor) -> Any:
        """Predict rows x by each replica, conditioned on the rows that it has ``seen`` [R, n].

        Gives a named tuple of arrays, replicas first, among them ``loc`` and ``variance`` [R, n, ...].
        """

    @abstractmethod
    def score(self, predictions: Any, y: Tensor, weight: Tensor) -> Array:
        """Score of each group [G] on held-out rows, whose weights [E, G, n] are zero for rows that were seen."""

    @staticmethod
    def join(groups: Sequence[Members]) -> Members:
        """One module with the members of all groups, in the order of replicas; of one group, this itself."""
        if len(groups) == 1:
            return groups[0]
        result = copy.deepcopy(groups[0])
        for module, *sources in zip(result.modules(), *(one.modules() for one in groups), strict=True):
            for name, _ in list(module.named_parameters(recurse=False)):
                joined = torch.stack([one.get_parameter(name).detach() for one in sources], 1).flatten(0, 1)
                setattr(module, name, nn.Parameter(joined))
            for name, _ in list(module.named_buffers(recurse=False)):
                setattr(module, name, torch.stack([one.get_buffer(name) for one in sources], 1).flatten(0, 1))
        result.features.name_members([name for name in groups[0].features.member_activations for _ in groups])
        return result


Kind = TypeVar("Kind", bound=Members)


@dataclass(frozen=True)
class FitRows:
    """Rows of one fit in standard units: inputs [N, D], targets [N, ...], weights [N] and the seed of its draws."""

    x: Array
    y: NDArray[Any]
    weight: Array | None
    seed: int


@dataclass(frozen=True)
class GroupRows:
    """Rows of one group: squashed inputs [N, D], targets [N, ...] and weights [N], and which of them members see."""

    x: Array
    y: NDArray[Any]
    weight: Array | None
    design: Design
    rng: np.random.Generator
    generator: torch.Generator

    @classmethod
    def of(cls, fit: FitRows, n_members: int) -> GroupRows:
        """The rows of a fit, with a design of its own."""
        x, rng = squash(fit.x), np.random.default_rng(fit.seed)
        design = Design.choose(x, n_members, rng, fit.y)
        return cls(x, fit.y, fit.weight, design, rng, torch.Generator().manual_seed(fit.seed))

    @cached_property
    def tensors(self) -> tuple[Tensor, ...]:
        """The parts of a :class:`Batch` in single precision, without the dimension of groups."""
        x, y = torch.as_tensor(self.x, dtype=torch.float32), torch.as_tensor(self.y)
        weight = torch.ones(len(x)) if self.weight is None else torch.as_tensor(self.weight, dtype=torch.float32)
        unseen, stops = torch.as_tensor(self.design.held_out), torch.zeros(self.design.n_members, 1, dtype=torch.bool)
        stops[self.design.stopping_members] = True
        counted = weight.expand(unseen.shape), weight * ~unseen, weight * (unseen & stops)
        return x, y.float() if y.is_floating_point() else y, *counted


@dataclass(frozen=True)
class Batch:
    """Rows of G groups, padded: x [G, N, D] and y [G, N, ...].

    Weights in E members [E, G, N] are of all rows, of those that a member sees, and of those that say when to stop.
    """

    x: Tensor
    y: Tensor
    weight: Tensor
    seen: Tensor
    stopping: Tensor

    @classmethod
    def of(cls, groups: Sequence[GroupRows]) -> Batch:
        """Pad the groups to the longest."""
        n_rows = max(len(group.x) for group in groups)

        def stacked(parts: Sequence[Tensor], axis: int) -> Tensor:
            """Stack tensors that have the rows at ``axis``; one alone is not copied."""
            if len(parts) == 1:
                return parts[0].unsqueeze(axis)
            after = [0, 0] * (parts[0].dim() - 1 - axis)
            return torch.stack([nn.functional.pad(one, [*after, 0, n_rows - one.shape[axis]]) for one in parts], axis)

        parts = zip(*(group.tensors for group in groups), strict=True)
        return cls(*(stacked(part, axis) for part, axis in zip(parts, (0, 0, 1, 1, 1), strict=True)))

    def of_rows(self, index: Tensor) -> Batch:
        """Some rows, those that are seen standing for all."""
        share = self.x.shape[1] / len(index)
        parts = (self.weight[..., index], self.seen[..., index] * share, self.stopping[..., index])
        return Batch(self.x[:, index], self.y[:, index], *parts)

    def inputs(self) -> tuple[Tensor, Tensor]:
        """x and y for all replicas: of one group [N, ...], of several [R, N, ...]."""
        if len(self.x) == 1:
            return self.x[0], self.y[0]
        n_members = len(self.weight)
        x, y = (part.expand(n_members, *part.shape).flatten(0, 1) for part in (self.x, self.y))
        return x, y

    def weighted(self, *, everything: bool) -> tuple[Tensor, Tensor, Tensor]:
        """x, y and weights [R, n] of all rows or of those that members see; of several groups, rows that count."""
        (x, y), by_replica = self.inputs(), (self.weight if everything else self.seen).flatten(0, 1)
        if len(self.x) == 1:
            return x, y, by_replica
        n_rows = int((by_replica > 0).sum(-1).max())
        order = torch.argsort(by_replica == 0, dim=-1, stable=True)[:, :n_rows]
        replica = torch.arange(len(order)).unsqueeze(-1)
        return x[replica, order], y[replica, order], by_replica.gather(1, order)


# -- training ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trained(Generic[Kind]):
    """Members of one group after training, its rows, and what members said of those that they had not seen."""

    members: Kind
    rows: GroupRows
    held: HeldOutPredictions | None  # None where there are too few rows to hold any out
    history: History


def train_ensembles(
    kind: Callable[..., Kind],
    fits: Sequence[FitRows],
    *,
    size: Size,
    callbacks: Sequence[Callback] = (),
    **options: Any,
) -> list[Trained[Kind]]:
    """Choose for each fit the rows that members must not see, and train new members of all fits at once.

    Members are of a ``kind`` with these options; they end in double precision, so that a row gets the same numbers
    whatever others come with it.
    """
    n_inputs = fits[0].x.shape[1]
    n_directions = count_directions(max(len(fit.x) for fit in fits), n_inputs)
    with torch.random.fork_rng(devices=[]):
        sizes = (n_inputs, size.hidden, size.activations, size.n_members, n_directions)
        members = [kind(*sizes, **options) for _ in fits]
    groups = [GroupRows.of(fit, size.n_members) for fit in fits]
    for one, group in zip(members, groups, strict=True):
        one.features.reset_parameters(group.generator)
        if n_directions:
            one.features.span(group.x)
    trained = train_members(members, groups, plan=size.plan, callbacks=callbacks)
    for done in trained:
        done.members.double()
        done.history.notes = done.rows.design.notes
    return trained


def train_members(
    members: Sequence[Kind], groups: Sequence[GroupRows], *, plan: TrainingPlan, callbacks: Sequence[Callback] = ()
) -> list[Trained[Kind]]:
    """Train the members of each group on its rows, in place.

    A step of several groups takes all rows, however many the plan allows in a batch.
    """
    run = MemberRun(members, groups, plan, callbacks)
    blind = [k for k, group in enumerate(groups) if group.design.groups]
    held = _train_blind(run, blind) if blind else {}
    _train_last(run, blind, plan.refit_steps)
    _train_last(run, [k for k in range(len(groups)) if k not in held], plan.refit_steps + WARM_UP)
    return [Trained(one, groups[k], held.get(k), run.histories[k]) for k, one in enumerate(members)]


def _train_blind(run: MemberRun, blind: Sequence[int]) -> dict[int, HeldOutPredictions]:
    """Train some groups without held-out rows, go back to where these were predicted best, and predict them."""
    run.choose_rows(blind, everything=False)
    watch = _Watch(run)
    for step in range(run.plan.max_steps):
        if step % CHECK_EVERY == 0 and not watch.goes_on(step):
            break
        if not run.step(run.plan.rate * min(1.0, (step + 1) / WARM_UP)):
            break
    return {group: watch.restore(group) for group in blind}


def _train_last(run: MemberRun, groups: Sequence[int], n_steps: int) -> None:
    """Train some groups on all rows, at a rate that falls to zero."""
    if not groups:
        return
    run.choose_rows(groups, everything=True)
    for step in range(n_steps):
        if not run.step(run.plan.rate * (1 - step / n_steps), last=step == n_steps - 1):
            break
    run.put_back()


class _Watch:
    """Keeps the members of each group as they were when the group's held-out rows were predicted best."""

    def __init__(self, run: MemberRun) -> None:
        self.run = run
        n_rows, n_groups = run.batch.x.shape[1], len(run.histories)
        self._index = torch.arange(n_rows)
        self._some: Batch | None = None  # rows of a long table that are checked
        if len(run.groups) == 1 and n_rows > CHECKED_ROWS:
            self._index = torch.randperm(n_rows, generator=run.generator)[:CHECKED_ROWS]
            self._some = run.batch.of_rows(self._index)
        self._best, self._best_step = np.full(n_groups, -np.inf), np.zeros(n_groups, dtype=np.int64)
        self._values = [[value.clone() for value in optimiser.values] for optimiser in run.optimisers]

    def _predict(self, members: Members, checked: Batch) -> Any:
        with torch.no_grad():
            return members.predict_held_out(*checked.inputs(), checked.seen.flatten(0, 1))

    def goes_on(self, step: int) -> bool:
        """Score the held-out rows; groups leave once theirs have not been predicted better for long enough."""
        run, groups = self.run, np.asarray(self.run.groups)
        checked = self._some or run.batch
        predictions = self._predict(run.members, checked)
        score = run.members.score(predictions, checked.inputs()[1], checked.stopping)
        for k in np.flatnonzero(score > self._best[groups]).tolist():
            self._best[groups[k]], self._best_step[groups[k]] = score[k], step
            run.copy_group(run.optimiser.values, k, self._values[groups[k]])
        staying = [int(group) for group in groups if step - self._best_step[group] < run.plan.patience]
        if 0 < len(staying) < len(groups):
            run.choose_rows(staying, everything=False)
        return bool(staying)

    def restore(self, group: int) -> HeldOutPredictions:
        """Go back to the best members of a group, and give what these predict for its checked rows."""
        self.run.put_back()
        for value, best in zip(self.run.optimisers[group].values, self._values[group], strict=True):
            value.copy_(best)
        rows = self.run.rows[group]
        said = self._predict(self.run.all_members[group], self._some or Batch.of([rows]))
        return HeldOutPredictions.of(said, rows.design, rows.x, self._index[: len(rows.x)].numpy())


class MemberRun:
    """Optimiser steps of the groups that train now, and the reports about them."""

    def __init__(
        self, members: Sequence[Members], rows: Sequence[GroupRows], plan: TrainingPlan, callbacks: Sequence[Callback]
    ) -> None:
        self.all_members, self.rows, self.plan, self.callbacks = members, rows, plan, callbacks
        self.optimisers = [Adam(one.parameters()) for one in members]
        self.histories = [History() for _ in members]
        self.generator = rows[0].generator
        self.started, self.n_taken = time.perf_counter(), 0
        self.groups: Sequence[int] = ()  # that train now
        self.choose_rows(range(len(members)), everything=True)

    def choose_rows(self, groups: Sequence[int], *, everything: bool) -> None:
        """Go on with some groups, each as it was when it left, with all rows or without those that members hold out."""
        if list(groups) != list(self.groups):
            self.put_back()
            self.groups = groups
            self.members = Members.join([self.all_members[group] for group in groups])
            self.optimiser = self.optimisers[groups[0]]
            if len(groups) > 1:
                self.optimiser = Adam(self.members.parameters())
                for k, group in enumerate(groups):
                    for common, own in zip(self.optimiser.state, self.optimisers[group].state, strict=True):
                        common.unflatten(0, (-1, len(groups)))[:, k] = own
            self.batch = Batch.of([self.rows[group] for group in groups])
        self._everything = everything
        self._rows = self.batch.weighted(everything=everything)

    def put_back(self) -> None:
        """Give each group that trains now its own part of the parameters and of the optimiser's state; none trains."""
        if len(self.groups) > 1:
            for k, group in enumerate(self.groups):
                self.copy_group(self.optimiser.state, k, self.optimisers[group].state)
        self.groups = ()

    def copy_group(self, common: Sequence[Tensor], k: int, own: Sequence[Tensor]) -> None:
        """Copy the part of the k-th group that trains now out of tensors of all of them."""
        for target, source in zip(own, common, strict=True):
            target.copy_(source.unflatten(0, (-1, len(self.groups)))[:, k])

    def step(self, rate: float, *, last: bool = False) -> bool:
        """Move all members up their log posterior once; False where a callback wants no more, or none can move."""
        x, y, weight = self._rows
        if x.dim() == 2 and len(x) > self.plan.batch_rows:  # the rows of a batch stand for all rows
            batch = torch.randint(len(x), (self.plan.batch_rows,), generator=self.generator)
            x, y, weight = x[batch], y[batch], weight[:, batch] * (len(x) / len(batch))
        self.optimiser.zero_grad()
        terms = _finite_log_posterior(self.members, x, y, weight)
        if terms is None:
            return self._leave_out_failing() and self.step(rate, last=last)
        total, fit = terms
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
        for group, taken, objective, fitted in zip(self.groups, self.optimiser.count, *means, strict=False):
            progress = Progress(int(taken), n_steps, objective, fitted, fitted - objective, rate, seconds)
            self.histories[group].records.append(progress)
            answers = [callback(progress) for callback in self.callbacks]  # all of them are told
            wants_no_more = wants_no_more or any(answers)
        if wants_no_more:
            for group in self.groups:
                self.histories[group].stopped = f"stopped by a callback at step {self.histories[group].last.step}"
        return not wants_no_more

    def _leave_out_failing(self) -> bool:
        """Go on without the groups whose log posterior is not finite; False where no other is left."""
        groups, sound = list(self.groups), []
        self.put_back()
        for group in groups if len(groups) > 1 else ():
            rows = Batch.of([self.rows[group]]).weighted(everything=self._everything)
            if _finite_log_posterior(self.all_members[group], *rows) is not None:
                sound.append(group)
        for group in set(groups).difference(sound):
            self.histories[group].stopped = "ended where the log posterior was no longer finite"
        goes_on = 0 < len(sound) < len(groups)
        self.choose_rows(sound if goes_on else groups, everything=self._everything)
        return goes_on


def _finite_log_posterior(members: Members, x: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor] | None:
    """The log posterior of each replica and the part that is the data's; None unless all are finite."""
    try:
        total, fit = members.log_posterior(x, y, weight)
    except NotPositiveDefiniteError:
        return None
    return (total, fit) if torch.isfinite(total).all() else None


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

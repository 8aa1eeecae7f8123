"""Training the members of an ensemble, each without the rows that it must not see."""

from __future__ import annotations

import copy
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vmg.fit.design import TrainingPlan
from vmg.fit.shared_members import MemberShard
from vmg.math.linalg import NotPositiveDefiniteError
from vmg.nn.anchored import AnchoredFeatures
from vmg.training import Callback, History, Progress

__all__ = ["Adam", "HeldOutRows", "Members", "train_members"]

CHECK_EVERY = 10  # steps between two looks at the held-out rows
CHECKED_ROWS = 4096  # at most, of which a member's held-out ones are scored
WARM_UP = 10  # steps


class Members(nn.Module, ABC):
    """Networks that train side by side, with output layers that are conditioned on rows, not trained."""

    features: AnchoredFeatures

    @abstractmethod
    def log_posterior(self, x: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Log posterior of each member's hidden layers up to a constant, and the part that is the data's: [E] each."""

    @abstractmethod
    def predict_held_out(self, x: Tensor, y: Tensor, seen: Tensor) -> Any:
        """What each member says of rows x when it is conditioned on those that it has ``seen`` [E, n]."""

    @abstractmethod
    def score(self, predictions: Any, y: Tensor, weight: Tensor) -> float:
        """How well held-out rows are predicted, their weights [E, n] being zero for rows that were seen."""

    def part(self, own: slice) -> Members:
        """Some of the members in a module of their own; every parameter and buffer has members first."""
        found = copy.deepcopy(self)
        for module in found.modules():
            for name, parameter in list(module.named_parameters(recurse=False)):
                setattr(module, name, nn.Parameter(parameter.detach()[own].clone()))
            for name, buffer in list(module.named_buffers(recurse=False)):
                setattr(module, name, buffer[own].clone())
        found.features.name_members(self.features.member_activations[own])
        return found


@dataclass(frozen=True)
class HeldOutRows:
    """Positions [n] of the rows that were checked, and what members said of them before they saw them."""

    index: NDArray[np.int64]
    predictions: Any


@dataclass(frozen=True)
class MemberRows:
    x: Tensor
    y: Tensor
    weight: Tensor  # [E, N]
    seen: Tensor  # the same, zero where a member must not look

    def __len__(self) -> int:
        return len(self.x)


def train_members(
    members: Members,
    x: Tensor,
    y: Tensor,
    held_out: NDArray[np.bool_],
    stopping_members: Sequence[int],
    *,
    weight: Tensor | None = None,
    plan: TrainingPlan,
    generator: torch.Generator,
    callbacks: Sequence[Callback] = (),
) -> tuple[HeldOutRows | None, History]:
    """Train in place; give back what members predicted of rows they had not seen.

    Inside :func:`vmg.fit.shared_members.members_shared` each process trains its own members, and all end with all; the
    history is that of a process's own.

    Args:
        x, y: standardised inputs [N, D] and targets [N, ...].
        held_out: rows that a member must not see, [E, N]; none at all skips the held-out part.
        stopping_members: members whose held-out rows decide when to stop.
        weight: of each row, [N].
    """
    given = (torch.ones(len(x), dtype=x.dtype) if weight is None else weight).expand(held_out.shape)
    seen = given * ~torch.as_tensor(held_out)
    shard = MemberShard(len(given))
    part = members if shard.alone else members.part(shard.own)
    run = MemberRun(part, MemberRows(x, y, given[shard.own], seen[shard.own]), plan, generator, callbacks)
    found = None
    if held_out.any():
        unseen = torch.zeros_like(seen)
        unseen[list(stopping_members)] = (given - seen)[list(stopping_members)]
        watch = _Watch(part, run.rows, unseen, plan, generator, shard)
        going = True
        for step in range(plan.max_steps):
            if step % CHECK_EVERY == 0 and not watch.goes_on(step):
                break
            going = going and run.step(run.rows.seen, plan.rate * min(1.0, (step + 1) / WARM_UP))
            if not shard.go_on(going, ask=_is_due(step)):
                break
        found = watch.restore()
    n_last, going = plan.refit_steps + (0 if found else WARM_UP), True
    for step in range(n_last):  # on all rows, at a rate that falls to zero
        going = going and run.step(run.rows.weight, plan.rate * (1 - step / n_last), last=step == n_last - 1)
        if not shard.go_on(going, ask=_is_due(step)):
            break
    shard.put_together(members, part)
    return found, run.history


def _is_due(step: int) -> bool:
    """Whether processes ask each other after this step if they go on; a message costs as much as a short step."""
    return (step + 1) % CHECK_EVERY == 0


class Adam:
    """Adam by PyTorch's own fused operation: ``torch.optim`` would first load a compiler, which takes two seconds."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self.parameters = list(parameters)
        self.means = [torch.zeros_like(p) for p in self.parameters]
        self.squares = [torch.zeros_like(p) for p in self.parameters]
        self.counts = [torch.zeros(()) for _ in self.parameters]

    def zero_grad(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self, rate: float) -> None:
        moving = [k for k, parameter in enumerate(self.parameters) if parameter.grad is not None]
        parameters: list[Tensor] = [self.parameters[k] for k in moving]
        gradients = [p.grad for p in parameters if p.grad is not None]
        means, squares, counts = ([part[k] for k in moving] for part in (self.means, self.squares, self.counts))
        for count in counts:
            count += 1
        options = {"beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "weight_decay": 0.0, "amsgrad": False, "maximize": False}
        torch._fused_adam_(parameters, gradients, means, squares, [], counts, lr=rate, **options)  # type: ignore[call-overload]


class MemberRun:
    """Optimiser steps, and the reports about them."""

    def __init__(
        self,
        members: Members,
        rows: MemberRows,
        plan: TrainingPlan,
        generator: torch.Generator,
        callbacks: Sequence[Callback],
    ) -> None:
        self.members, self.rows, self.plan = members, rows, plan
        self.optimiser = Adam(members.parameters())
        self.generator, self.callbacks = generator, callbacks
        self.history = History()
        self.started, self.n_taken = time.perf_counter(), 0

    def step(self, weight: Tensor, rate: float, *, last: bool = False) -> bool:
        """Move all members up their log posterior once; False where a callback wants no more."""
        x, y, n_rows = self.rows.x, self.rows.y, len(self.rows)
        if n_rows > self.plan.batch_rows:  # the rows of a batch stand for all rows
            batch = torch.randint(n_rows, (self.plan.batch_rows,), generator=self.generator)
            x, y, weight = x[batch], y[batch], weight[:, batch] * (n_rows / len(batch))
        self.optimiser.zero_grad()
        try:
            total, fit = self.members.log_posterior(x, y, weight)
        except NotPositiveDefiniteError:
            return self._give_up()
        if not torch.isfinite(total).all():
            return self._give_up()
        size = weight.sum(-1)
        (-total / size).sum().backward()
        self.optimiser.step(rate)
        self.n_taken += 1
        due = last or self.n_taken % CHECK_EVERY == 0
        return not due or self._report(total / size, fit / size, rate)

    def _give_up(self) -> bool:
        self.history.stopped = "ended where the log posterior was no longer finite"
        return False

    def _report(self, total: Tensor, fit: Tensor, rate: float) -> bool:
        objective, fitted = total.mean().item(), fit.mean().item()
        seconds = time.perf_counter() - self.started
        n_steps = self.plan.max_steps + self.plan.refit_steps
        progress = Progress(self.n_taken, n_steps, objective, fitted, fitted - objective, rate, seconds)
        self.history.records.append(progress)
        answers = [callback(progress) for callback in self.callbacks]  # all of them are told
        wants_no_more = any(answers)
        if wants_no_more:
            self.history.stopped = f"stopped by a callback at step {self.n_taken}"
        return not wants_no_more


class _Watch:
    """Keeps the members as they were when the held-out rows of all were predicted best.

    ``unseen`` are the weights of the rows that say so, for all members of the shard [E, N].
    """

    def __init__(
        self,
        members: Members,
        rows: MemberRows,
        unseen: Tensor,
        plan: TrainingPlan,
        generator: torch.Generator,
        shard: MemberShard,
    ) -> None:
        self.members, self.patience, self.shard = members, plan.patience, shard
        n = len(rows)
        self.index = torch.arange(n) if n <= CHECKED_ROWS else torch.randperm(n, generator=generator)[:CHECKED_ROWS]
        self.x, self.y = rows.x[self.index], rows.y[self.index]
        self.seen = rows.seen[:, self.index] * (n / len(self.index))  # the checked rows stand for all rows
        self.unseen = unseen[:, self.index]
        self.best, self.best_step = -math.inf, 0
        self.state = self._copy()

    def _copy(self) -> dict[str, Tensor]:
        return {name: value.clone() for name, value in self.members.state_dict().items()}

    def _predict(self) -> Any:
        with torch.no_grad():
            return self.shard.all_members(self.members.predict_held_out(self.x, self.y, self.seen))

    def goes_on(self, step: int) -> bool:
        """Score the held-out rows; False once they have not been predicted better for long enough."""
        score = self.shard.first(self.members.score(self._predict(), self.y, self.unseen))
        if score > self.best:
            self.best, self.best_step, self.state = score, step, self._copy()
        return step - self.best_step < self.patience

    def restore(self) -> HeldOutRows:
        """Go back to the best members, and give what they say of the checked rows."""
        self.members.load_state_dict(self.state)
        return HeldOutRows(self.index.numpy(), self._predict())

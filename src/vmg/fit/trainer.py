"""Training the members of an ensemble, each without the rows that it must not see.

A small network spends its time in the bookkeeping of a step, not in arithmetic, so the E members are replicas in one
module. Training stops when held-out rows say so; the last steps are on all rows.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vmg.fit.calibration import HeldOutPredictions, MemberPredictions
from vmg.fit.design import FitRows, FitSettings, TrainingPlan, count_directions
from vmg.math.distributions import Array
from vmg.math.evidence import group_precision, log_precision_prior
from vmg.math.linalg import NotPositiveDefiniteError
from vmg.model_file import Tensors
from vmg.nn.anchored import AnchoredFeatures
from vmg.training import Callback, History, Progress

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Adam", "Kind", "MemberRun", "Members", "train_ensemble", "train_members"]

CHECK_EVERY = 10  # steps between two looks at the held-out rows
CHECKED_ROWS = 4096  # at most, of which a member's held-out ones are scored
WARM_UP = 10  # steps
BETA1, BETA2, EPSILON = 0.9, 0.99, 1e-8  # of Adam


# -- members and their rows -------------------------------------------------------------------------------------------


class Members(nn.Module, ABC):
    """Networks that train side by side, with output layers that are conditioned on rows, not trained.

    Every parameter and buffer has the E members first. Rows x [n, D] are the same for all.
    """

    log_precision: Any  # logarithms of the prior's precisions [E, G], one for each group of features

    def __init__(
        self, in_features: int, hidden: Sequence[int], activations: Sequence[str], n_members: int, n_directions: int = 0
    ) -> None:
        super().__init__()
        options = {"n_members": n_members, "n_directions": n_directions}
        self.features = AnchoredFeatures(in_features, hidden, activation=activations, **options)

    @property
    def made_with(self) -> dict[str, Any]:
        """Arguments that members of the same sizes are made with."""
        names = ("in_features", "hidden", "activations", "n_members", "n_directions")
        return {name: getattr(self.features, name) for name in names}

    @classmethod
    def from_state(cls, tensors: Tensors, made_with: Mapping[str, Any]) -> Self:
        """Members with these tensors; a RuntimeError where they have other sizes, which take no memory until then."""
        with torch.device("meta"):
            members = cls(**made_with).double()
        copies = {name: tensor.to(torch.float64, copy=True) for name, tensor in tensors.items()}
        members.load_state_dict(copies, assign=True)
        return members.eval()

    def prior_precision(self) -> Tensor:
        """a [E, D]: every group of features has one precision."""
        return group_precision(self.log_precision, self.features.group_sizes)

    def log_posterior(self, x: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Log posterior of each member's hidden layers up to a constant, and the part that is the data's: [E] each."""
        fit = self.evidence(self.features(x), y, weight)
        return fit + self.features.log_prior() + log_precision_prior(self.log_precision), fit

    @abstractmethod
    def evidence(self, features: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        """Log evidence of the rows, or the bound of it, with the output layer integrated out, [E]."""

    @abstractmethod
    def predict_held_out(self, x: Tensor, y: Tensor, seen: Tensor) -> MemberPredictions:
        """Predict rows x by each member, conditioned on the rows that it has ``seen`` [E, n]."""

    @abstractmethod
    def score(self, predictions: MemberPredictions, y: Tensor, weight: Tensor) -> float:
        """Score on held-out rows, whose weights [E, n] are zero for rows that a member has seen."""


Kind = TypeVar("Kind", bound=Members)


@dataclass(frozen=True)
class Batch:
    """Rows x [N, D] and y [N, ...] in single precision.

    Weights in E members [E, N] are of all rows, of those that a member sees, and of those that say when to stop.
    """

    x: Tensor
    y: Tensor
    weight: Tensor
    seen: Tensor
    stopping: Tensor

    @classmethod
    def of(cls, rows: FitRows) -> Batch:
        """All rows of a fit."""
        x, y = torch.as_tensor(rows.x, dtype=torch.float32), torch.as_tensor(rows.y)
        weight = torch.as_tensor(rows.weight, dtype=torch.float32)
        unseen, stops = torch.as_tensor(rows.design.held_out), torch.zeros(rows.design.n_members, 1, dtype=torch.bool)
        stops[rows.design.stopping_members] = True
        counted = weight.expand(unseen.shape), weight * ~unseen, weight * (unseen & stops)
        return cls(x, y.float() if y.is_floating_point() else y, *counted)

    def of_rows(self, index: Tensor) -> Batch:
        """Some rows, those that are seen standing for all."""
        share = len(self.x) / len(index)
        parts = (self.weight[:, index], self.seen[:, index] * share, self.stopping[:, index])
        return Batch(self.x[index], self.y[index], *parts)


# -- training ---------------------------------------------------------------------------------------------------------


def train_ensemble(
    kind: Callable[..., Kind], x: Array, y: NDArray[Any], weight: Array | None, settings: FitSettings, **options: Any
) -> MemberRun[Kind]:
    """Train new members on rows in standard units, and choose the rows that each must not see.

    Members are of a ``kind`` with these options; they end in double precision, so that a row gets the same numbers
    whatever others come with it.
    """
    (size, seed, callbacks), n_directions = settings, count_directions(*x.shape)
    with torch.random.fork_rng(devices=[]):
        members = kind(x.shape[1], size.hidden, size.activations, size.n_members, n_directions, **options)
    rows = FitRows.of(x, y, weight, size.n_members, seed)
    members.features.reset_parameters(rows.generator)
    if n_directions:
        members.features.span(rows.x)
    run = train_members(members, rows, plan=size.plan, callbacks=callbacks)
    members.double()
    run.history.notes = rows.design.notes
    return run


def train_members(
    members: Kind, rows: FitRows, *, plan: TrainingPlan, callbacks: Sequence[Callback] = ()
) -> MemberRun[Kind]:
    """Train members on their rows, in place."""
    run = MemberRun(members, rows, plan, callbacks)
    if rows.design.groups:
        run.held = _train_blind(run)
    n_steps = plan.refit_steps + (WARM_UP if run.held is None else 0)
    run.sees_everything = True
    for step in range(n_steps):  # at a rate that falls to zero
        if not run.step(plan.rate * (1 - step / n_steps), last=step == n_steps - 1):
            break
    return run


def _train_blind(run: MemberRun[Any]) -> HeldOutPredictions:
    """Train without held-out rows, go back to where these were predicted best, and predict them."""
    members, rows, plan = run.members, run.rows, run.plan
    index, checked = torch.arange(len(rows.x)), run.batch
    if len(index) > CHECKED_ROWS:
        index = torch.randperm(len(index), generator=rows.generator)[:CHECKED_ROWS]
        checked = checked.of_rows(index)

    @torch.no_grad()
    def predict() -> MemberPredictions:
        return members.predict_held_out(checked.x, checked.y, checked.seen)

    best, best_step = -np.inf, 0
    kept = [value.clone() for value in run.optimiser.values]
    for step in range(plan.max_steps):
        if step % CHECK_EVERY == 0:
            score = members.score(predict(), checked.y, checked.stopping)
            if score > best:
                best, best_step = score, step
                torch._foreach_copy_(kept, run.optimiser.values)
            if step - best_step >= plan.patience:
                break
        if not run.step(plan.rate * min(1.0, (step + 1) / WARM_UP)):
            break
    torch._foreach_copy_(run.optimiser.values, kept)
    return HeldOutPredictions(predict(), rows, index.numpy())


class MemberRun(Generic[Kind]):
    """Optimiser steps of members, without the rows that they must not see or with everything, and the reports.

    ``held`` is what members said of rows that they had not seen; None where too few rows could be held out.
    """

    held: HeldOutPredictions | None = None

    def __init__(self, members: Kind, rows: FitRows, plan: TrainingPlan, callbacks: Sequence[Callback]) -> None:
        self.members, self.rows, self.plan, self.callbacks = members, rows, plan, callbacks
        self.batch, self.optimiser, self.history = Batch.of(rows), Adam(members.parameters()), History()
        self.sees_everything = False
        self.started = time.perf_counter()

    def step(self, rate: float, *, last: bool = False) -> bool:
        """Move all members up their log posterior once; False where a callback wants no more, or none can move."""
        x, y = self.batch.x, self.batch.y
        weight = self.batch.weight if self.sees_everything else self.batch.seen
        if len(x) > self.plan.batch_rows:  # the rows of a batch stand for all rows
            batch = torch.randint(len(x), (self.plan.batch_rows,), generator=self.rows.generator)
            x, y, weight = x[batch], y[batch], weight[:, batch] * (len(x) / len(batch))
        self.optimiser.zero_grad()
        try:
            total, fit = self.members.log_posterior(x, y, weight)
        except NotPositiveDefiniteError:
            total = fit = torch.full((1,), torch.nan)
        if not torch.isfinite(total).all():
            self.history.stopped = "ended where the log posterior was no longer finite"
            return False
        size = weight.sum(-1)
        (-total / size).sum().backward()
        self.optimiser.step(rate)
        due = last or self.optimiser.count % CHECK_EVERY == 0
        return not due or self._report(total / size, fit / size, rate)

    def _report(self, total: Tensor, fit: Tensor, rate: float) -> bool:
        seconds = time.perf_counter() - self.started
        n_steps, taken = self.plan.max_steps + self.plan.refit_steps, self.optimiser.count
        objective, fitted = (part.mean(0).item() for part in (total, fit))
        progress = Progress(taken, n_steps, objective, fitted, fitted - objective, rate, seconds)
        self.history.records.append(progress)
        answers = [callback(progress) for callback in self.callbacks]  # all of them are told
        if any(answers):
            self.history.stopped = f"stopped by a callback at step {taken}"
        return not any(answers)


class Adam:
    """Adam on parameters; ``torch.optim`` would first load a compiler, which takes two seconds."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self._parameters = list(parameters)
        self.values = [parameter.detach() for parameter in self._parameters]  # the same memory
        self._means, self._squares = ([torch.zeros_like(value) for value in self.values] for _ in range(2))
        self.count = 0

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for parameter in self._parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Move the parameters by their gradients; one without a gradient stays."""
        self.count += 1
        factors = -rate / (1 - BETA1**self.count), np.sqrt(1 - BETA2**self.count)
        length, correction = (torch.tensor(factor, dtype=torch.float32) for factor in factors)
        for parameter, value, mean, square in zip(
            self._parameters, self.values, self._means, self._squares, strict=True
        ):
            gradient = parameter.grad
            if gradient is None:
                continue
            mean.lerp_(gradient, 1 - BETA1)
            square.mul_(BETA2).addcmul_(gradient, gradient, value=1 - BETA2)
            root = torch.from_numpy(np.sqrt(square.numpy()))  # torch's own square root may be one bit off
            root.div_(correction).add_(EPSILON)
            value.add_((mean * length).div_(root))

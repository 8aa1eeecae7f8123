"""The training loop: Adam on the bound, averaged parameters, and a history."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from vmg.fingerprint import fingerprint_function, fingerprint_modules, fingerprint_tensors
from vmg.likelihoods import Likelihood
from vmg.math.linalg import NotPositiveDefiniteError, all_finite
from vmg.nn.bayesian import BayesianModule, kl_divergence, use_generator
from vmg.training.averaging import Average
from vmg.training.batches import minibatches, take_rows
from vmg.training.checkpoint import Checkpoint, RunState
from vmg.training.flat_parameters import FlatParameters
from vmg.training.step import make_step

__all__ = [
    "Callback",
    "History",
    "Progress",
    "Schedule",
    "TrainingError",
    "constant",
    "cosine",
    "train",
]

FUSED = ("cpu", "cuda")  # devices on which Adam's fused step is at hand in every supported PyTorch

Schedule = Callable[[float], float]
"""Learning-rate factor as a function of the finished share of training, 0 to 1."""


def constant(progress: float) -> float:
    """The same learning rate throughout, as in the paper."""
    return 1.0


def cosine(progress: float) -> float:
    """From one down to zero along half a cosine (Loshchilov & Hutter 2017)."""
    return 0.5 * (1 + math.cos(math.pi * progress))


@dataclass(frozen=True)
class Progress:
    """Where training stands; terms are per datum, averaged over replicas and the steps since the last report."""

    step: int
    n_steps: int
    elbo: float
    expected_log_likelihood: float
    kl: float
    learning_rate: float
    seconds: float


@dataclass
class History:
    """What a training run reported, and why it ended."""

    records: list[Progress] = field(default_factory=list)
    stopped: str = "all steps done"

    @property
    def last(self) -> Progress:
        return self.records[-1]


Callback = Callable[[Progress], bool | None]
"""Called at every report; returning True ends training."""


class TrainingError(RuntimeError):
    """The bound stopped being finite; the network holds its last good parameters."""


def train(
    network: nn.Module,
    likelihood: Likelihood,
    x: Tensor,
    y: Tensor,
    *,
    n_steps: int,
    batch_size: int = 32,
    learning_rate: float = 1e-3,
    schedule: Schedule = constant,
    averaging: float | None = 0.999,
    kl_weight: float | Sequence[float] = 1.0,
    weight: Tensor | None = None,
    n_rows: Tensor | None = None,
    batch_shape: Sequence[int] = (),
    callbacks: Sequence[Callback] = (),
    report_every: int = 100,
    generator: torch.Generator | None = None,
    checkpoint: Checkpoint | None = None,
) -> History:
    """Maximise the bound with Adam and leave the averaged parameters in ``network`` and ``likelihood``.

    Args:
        network, likelihood: trained in place.
        x, y: all training rows, [N, ...], or [*batch_shape, N, ...] where replicas see different data.
        n_steps: optimiser steps.
        batch_size: rows per step and replica.
        learning_rate, schedule: Adam's rate and its factor over time.
        averaging: decay of the exponential average of parameters that is kept for prediction; None keeps the last.
        kl_weight: 1 is the bound; several are gone through step by step and again, which with mean 1 over an epoch
            gives the bound of the epoch.
        weight: of each row, shaped as y without its last dimension; it counts as that many rows.
        n_rows: rows of each replica, [*batch_shape], where these differ; the first ``n_rows[k]`` rows are replica k's.
        batch_shape: of the network.
        callbacks: called with a :class:`Progress` at every report, while the network is what training would give
            back now, averaged; True ends training.
        report_every: steps between reports.
        generator: of minibatches and posterior noise.
        checkpoint: where the run keeps its state, after the callbacks of a report. A run that finds a file there goes
            on from it and ends with the bits of one that was never stopped, as long as the number of threads and the
            machine are the same. Callbacks start anew. A file of a run with other rows, settings, layers or schedule
            is refused; so is, where a generator is given, one with another seed or other parameters at the start.
            Without a generator both are taken to be drawn anew by each process.
    """
    if n_steps < 1 or batch_size < 1:
        raise ValueError(f"n_steps and batch_size must be at least 1; got {n_steps} and {batch_size}")
    if not (all_finite(x) and all_finite(y)):
        raise ValueError("x and y must be finite; got NaN or infinite values")
    n_batch = len(batch_shape)
    own = n_batch > 0 and x.dim() >= n_batch + 2 and x.shape[:n_batch] == tuple(batch_shape)
    n_table = x.shape[n_batch if own else 0]
    for name, rows in (("y", y), ("weight", weight)):
        if rows is not None and rows.shape[: n_batch * own + 1] != x.shape[: n_batch * own + 1]:
            raise ValueError(
                f"{name} must have {n_table} rows, as x of shape {tuple(x.shape)} has; got {rows.shape[n_batch * own]} "
                f"in shape {tuple(rows.shape)}"
            )
    sizes = torch.as_tensor(n_table if n_rows is None else n_rows)
    n_data: Tensor | float = sizes.to(x)
    if weight is not None:
        n_data = weight.sum(-1)
        weight = weight / (n_data / sizes.to(x)).unsqueeze(-1)  # mean 1 over the rows that count

    both = nn.ModuleList([network, likelihood])
    run: dict[str, Any] = {
        "n_steps": n_steps,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "averaging": averaging,
        "report_every": report_every,
        "kl_weight": list(kl_weight) if isinstance(kl_weight, Sequence) else kl_weight,
        "rows": list(x.shape),
        "parameters": sum(p.numel() for p in both.parameters()),
    }
    if checkpoint is not None:
        run["same"] = _fingerprints(both, {"x": x, "y": y, "weight": weight, "n_rows": n_rows}, schedule, generator)
    saved = None if checkpoint is None else checkpoint.read(run)
    history = History() if saved is None else History([Progress(**report) for report in saved.reports])
    done = history.last.step if history.records else 0
    if isinstance(kl_weight, Sequence):
        place = done % len(kl_weight)
        kl_weight = [*kl_weight[place:], *kl_weight[:place]]

    batches = minibatches(sizes, batch_size, batch_shape, generator)
    flat = FlatParameters(both.parameters())
    try:
        fused = all(tensor.device.type in FUSED for tensor in flat.tensors)
        optimiser = torch.optim.Adam(flat.tensors, lr=learning_rate, fused=fused)
        average = None if averaging is None else Average(flat, averaging)
        state = RunState(both, flat, optimiser, average, batches, generator)
        if checkpoint is not None and saved is not None:
            checkpoint.restore(state, saved)
            if saved.stopped is not None:
                history.stopped, done = saved.stopped, n_steps
        use_generator(network, generator)
        batch = (*batch_shape, min(batch_size, int(sizes.min())), *x.shape[n_batch * own + 1 :])
        evaluate = make_step(network, likelihood, flat, batch, n_data=n_data, kl_weight=kl_weight, optimiser=optimiser)
        both.train()

        window, since = torch.zeros(2, device=x.device), 0
        good = _LastGood(flat, likelihood)
        started = time.perf_counter() - (history.last.seconds if history.records else 0.0)
        for step in range(done + 1, n_steps + 1):
            rate = learning_rate * schedule((step - 1) / n_steps)
            optimiser.param_groups[0]["lr"] = rate
            index = next(batches)
            x_batch, y_batch = take_rows(x, index, own=own), take_rows(y, index, own=own)
            w_batch = None if weight is None else take_rows(weight, index, own=own)

            try:
                f, terms = evaluate(x_batch, y_batch, w_batch)
                healthy = math.isfinite(terms.total.sum().item())
            except NotPositiveDefiniteError:
                healthy = False
            if not healthy:
                raise good.failure(step, rate, network, x_batch)
            optimiser.step()
            likelihood.update_(f, y_batch, n_data, w_batch)
            if average is not None:
                average.update()

            window += torch.stack([terms.expected_log_likelihood.mean(), terms.kl.mean()])
            since += 1
            if step % report_every == 0 or step == n_steps:
                if not good.keep():
                    raise good.failure(step, rate, network, x_batch)
                fit, kl = (window / since).tolist()
                progress = Progress(step, n_steps, fit - kl, fit, kl, rate, time.perf_counter() - started)
                history.records.append(progress)
                window, since = torch.zeros(2, device=x.device), 0
                if average is not None and callbacks:
                    flat.restore(average.values)
                stop = any([callback(progress) for callback in callbacks])  # noqa: C419 - every callback is called
                if average is not None and callbacks:
                    good.restore()
                if stop:
                    history.stopped = f"stopped by a callback at step {step}"
                number = len(history.records)
                if checkpoint is not None and (stop or step == n_steps or number % checkpoint.every == 0):
                    reports = [asdict(record) for record in history.records]
                    checkpoint.write(state, run, reports, history.stopped if stop else None)
                if stop:
                    break
        if average is not None:
            flat.restore(average.values)
    finally:
        flat.release()
        both.eval()
    return history


def _fingerprints(
    modules: nn.Module, rows: Mapping[str, Tensor | None], schedule: Schedule, generator: torch.Generator | None
) -> dict[str, str]:
    """What a run must share with the file that it goes on from, by the names that a refusal gives."""
    found = {f"{name}, bit for bit": fingerprint_tensors({name: tensor}) for name, tensor in rows.items()}
    found["layers and their options"] = fingerprint_modules(modules)
    found["schedule of the learning rate"] = fingerprint_function(schedule)
    if generator is not None:
        found["seed"] = fingerprint_tensors({"generator": generator.get_state()})
        found["parameters at the start"] = fingerprint_tensors(modules.state_dict())
    return found


class _LastGood:
    """The parameters at the last report at which all of them were finite."""

    def __init__(self, flat: FlatParameters, likelihood: Likelihood) -> None:
        self._flat, self._likelihood = flat, likelihood
        self._values: list[Tensor] = []
        self._state: dict[str, Tensor] = {}
        self.keep()

    def keep(self) -> bool:
        """Remember the present parameters, if they are finite; say whether they are."""
        state = self._likelihood.state_dict()
        finite = all(all_finite(t.detach()) for t in (*self._flat.tensors, *state.values()))
        if finite:
            self._flat.copy_to(self._values)
            self._state = {name: value.clone() for name, value in state.items()}
        return finite

    def restore(self) -> None:
        """Put the remembered parameters back."""
        self._flat.restore(self._values)

    def failure(self, step: int, rate: float, network: nn.Module, x: Tensor) -> TrainingError:
        """Put the good parameters back and say where training broke."""
        culprit = _first_non_finite(network, x)
        if self._values:
            self._likelihood.load_state_dict(self._state)
            self.restore()
        return TrainingError(
            f"the bound is not finite at step {step}, first in {culprit}; the parameters of the last good report are "
            f"restored. Lower the learning rate (now {rate:g}) or check the scale of the data."
        )


def _first_non_finite(network: nn.Module, x: Tensor) -> str:
    """The name of the layer where NaN or infinity first shows: in its parameters, its output or its KL."""
    for name, parameter in network.named_parameters():
        if not torch.isfinite(parameter).all():
            return f"parameter {name}"
    entered: list[str] = []
    found: list[str] = []
    hooks = []
    for name, module in network.named_modules():
        if isinstance(module, BayesianModule):

            def enter(module: nn.Module, inputs: tuple[Tensor, ...], name: str = name) -> None:
                entered.append(name)

            def look(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor, name: str = name) -> None:
                if not torch.isfinite(output).all():
                    found.append(f"the output of layer {name}")

            hooks += [module.register_forward_pre_hook(enter), module.register_forward_hook(look)]
    try:
        with torch.no_grad():
            network(x)
    except ValueError as error:  # a layer may refuse what the layer before it made
        found.append(f"layer {entered[-1] if entered else ''}: {error}")
    finally:
        for hook in hooks:
            hook.remove()
    if found:
        return found[0]
    for name, module in network.named_modules():
        if isinstance(module, BayesianModule) and not torch.isfinite(kl_divergence(module)).all():
            return f"the KL of layer {name}"
    return "the likelihood"

"""The training loop: Adam on the objective, with averaging, reports and checkpoints as hooks around it.

Several processes may train one model. All hold the same parameters and draw the same order of rows; each takes its own
part of every minibatch and its own posterior noise. The mean over processes of the gradients of mean(−log p) + KL/N is
the gradient at the joined batch, with the KL counted once. Conjugate posteriors, such as that of the noise, take in the
gathered outputs of the joined batch.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vmg.likelihoods import Likelihood
from vmg.math.linalg import NotPositiveDefiniteError
from vmg.model_file import fingerprint_tensors
from vmg.nn.bayesian import use_generator
from vmg.objective import ElboTerms, Objective
from vmg.processes import add_up_, gather, rank_and_size, send_
from vmg.training.progress import Callback, History, Progress, Schedule, constant
from vmg.training.rows import Batch, Minibatches, TrainingRows
from vmg.training.state import Average, Checkpoint, KeptRun, LastGood

__all__ = ["Processes", "differentiate", "train"]

PROBES = 32  # places at which a schedule is read; the last one is just below 1, where a step may be
FUSED = ("cpu", "cuda")  # devices on which Adam's fused step is at hand in every supported PyTorch


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
    weight: Tensor | None = None,
    n_rows: Tensor | None = None,
    batch_shape: Sequence[int] = (),
    callbacks: Sequence[Callback] = (),
    report_every: int = 100,
    generator: torch.Generator | None = None,
    checkpoint: Checkpoint | None = None,
) -> History:
    """Maximise the objective with Adam and leave the averaged parameters in ``network`` and ``likelihood``.

    Under an initialised process group (``torchrun``) the processes train one model: each takes its share of every
    batch, and all end with the same bits. All must be given the same rows, which may be mapped files.

    Args:
        network, likelihood: trained in place.
        x, y: all training rows, [N, ...], or [*batch_shape, N, ...] where replicas see different data.
        n_steps: optimiser steps.
        batch_size: rows per step and replica, of all processes together, which take as many each.
        learning_rate, schedule: Adam's rate and its factor over time.
        averaging: decay of the exponential average of parameters that is kept for prediction; None keeps the last.
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
            is refused; with a generator also one with another seed or other parameters at the start.
    """
    if n_steps < 1 or batch_size < 1:
        raise ValueError(f"n_steps and batch_size must be at least 1; got {n_steps} and {batch_size}")
    rows = TrainingRows(x, y, weight, n_rows, batch_shape)
    both, processes = nn.ModuleList([network, likelihood]), Processes()
    n_own = min(batch_size, int(rows.sizes.min())) // processes.size
    if n_own < 1:
        raise ValueError(f"a batch must have at least one row for each of {processes.size} processes; got {n_own}")
    generator = processes.start_equal(both, x, generator)
    batches = Minibatches(rows.sizes, n_own * processes.size, batch_shape, generator)
    settings: dict[str, Any] = {
        "n_steps": n_steps,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "averaging": averaging,
        "report_every": report_every,
        "rows": list(x.shape),
        "parameters": sum(p.numel() for p in both.parameters()),
    }
    if checkpoint is not None:
        settings |= _fingerprints(both, rows.tensors() | {"n_rows": n_rows}, schedule, generator)

    parameters = [p for p in both.parameters() if p.requires_grad]
    both.train()
    try:
        fused = all(p.device.type in FUSED for p in parameters)
        optimiser = torch.optim.Adam(parameters, lr=learning_rate, fused=fused)
        average = None if averaging is None else Average(parameters, averaging)
        kept, history, done = None, History(), 0
        if checkpoint is not None:
            parts = {"model": both, "batches": batches, **({} if average is None else {"average": average})}
            kept = KeptRun(checkpoint, settings, history, parts, optimiser, generator)
            done = kept.resume(n_steps)
        use_generator(network, generator if processes.alone else processes.seed_noise(done))
        objective = Objective(network, likelihood, rows.n_data, together=not processes.alone)
        last_good = LastGood(both)
        reports = Reports(history, n_steps, callbacks, average, last_good, torch.zeros(2, device=x.device))

        for step in range(done + 1, n_steps + 1):
            rate = learning_rate * schedule((step - 1) / n_steps)
            batch = rows.take(processes.slice(next(batches)))
            try:
                terms = differentiate(objective, parameters, batch)
            except NotPositiveDefiniteError:
                terms = None
            terms = processes.mean_(terms, parameters, batch_shape)
            if terms is None:
                raise last_good.failure(step, rate, batch.x)
            optimiser.param_groups[0]["lr"] = rate
            optimiser.step()
            objective.update_likelihood(terms.f, batch.y, batch.weight, terms.kl.dim())
            reports.add(terms)
            if average is not None:
                average.update()
            if step % report_every == 0 or step == n_steps:
                if not last_good.keep():
                    raise last_good.failure(step, rate, batch.x)
                reports.report(step, rate)
                processes.agree_on(history, step)
                if kept is not None and processes.rank == 0:
                    kept.write()
            if history.was_stopped:
                break
        if average is not None:
            average.put_in_place()
        optimiser.zero_grad()
    finally:
        both.eval()
    return history


def differentiate(objective: Objective, parameters: Sequence[Tensor], batch: Batch) -> ElboTerms:
    """The objective at a minibatch; the gradient of its negative is left in the parameters."""
    terms = objective.evaluate(*batch)
    for parameter in parameters:
        parameter.grad = None
    (-terms.total.sum()).backward()  # replicas are independent: a sum leaves each one's gradient as it is
    return ElboTerms(*(term.detach() for term in terms if term is not None))


def _fingerprints(
    modules: nn.Module, rows: Mapping[str, Tensor | None], schedule: Schedule, generator: torch.Generator | None
) -> dict[str, Any]:
    """Facts that a run must share with the file that it goes on from, by the names that a refusal gives."""
    digests: dict[str, Any] = {f"{k}, bit for bit": fingerprint_tensors({k: tensor}) for k, tensor in rows.items()}
    digests["layers and their options"] = repr(modules)
    digests["schedule of the learning rate"] = [schedule(k / PROBES) for k in range(PROBES)]
    if generator is not None:
        digests["seed"] = fingerprint_tensors({"generator": generator.get_state()})
        digests["parameters at the start"] = fingerprint_tensors(modules.state_dict())
    return digests


# -- reports ----------------------------------------------------------------------------------------------------------


@dataclass
class Reports:
    """Gathers the terms of every step; at a report, calls the callbacks while the averaged parameters are in place."""

    history: History
    n_steps: int
    callbacks: Sequence[Callback]
    average: Average | None
    last_good: LastGood
    sums: Tensor  # of both terms since the last report
    count: int = 0

    def __post_init__(self) -> None:
        self.started = time.perf_counter() - (self.history.last.seconds if self.history.records else 0.0)

    def add(self, terms: ElboTerms) -> None:
        """Take in the terms of a step."""
        self.sums += torch.stack([terms.expected_log_likelihood.mean(), terms.kl.mean()])
        self.count += 1

    def report(self, step: int, rate: float) -> None:
        """Write a record, and ask the callbacks whether training goes on."""
        fit, kl = (self.sums / self.count).tolist()
        self.sums.zero_()
        self.count = 0
        progress = Progress(step, self.n_steps, fit - kl, fit, kl, rate, time.perf_counter() - self.started)
        self.history.records.append(progress)
        average = self.average if self.callbacks else None
        if average is not None:
            average.put_in_place()
        answers = [callback(progress) for callback in self.callbacks]
        if average is not None:
            self.last_good.restore()
        if any(answers):
            self.history.stopped = f"stopped by a callback at step {step}"


# -- several processes ------------------------------------------------------------------------------------------------


class Processes:
    """The processes of the default group; one alone where there is none."""

    def __init__(self) -> None:
        self.rank, self.size = rank_and_size()
        self._seed, self._noise = 0, torch.Generator()  # of this process's own posterior noise

    @property
    def alone(self) -> bool:
        """Whether there is no other process."""
        return self.size == 1

    def start_equal(
        self, modules: nn.Module, rows: Tensor, generator: torch.Generator | None
    ) -> torch.Generator | None:
        """Give all processes the first one's parameters, buffers and order of rows; the generator of that order.

        Rows are shared by what each process reads of them, so all must be given the same table.
        """
        if self.alone:
            return generator
        common = torch.Generator() if generator is None else generator
        shapes = gather(list(rows.shape), "before the first step")
        if any(shape != shapes[0] for shape in shapes):
            raise ValueError(f"x must have the same shape in all processes; got {shapes}")
        if generator is None:  # each process draws its own seed, the first one's counts
            common.manual_seed(int(torch.randint(2**62, ())))
        state = common.get_state()
        tensors = [tensor.detach() for tensor in (*modules.parameters(), *modules.buffers())]
        send_([state, *tensors], "before the first step")
        common.set_state(state)
        self._seed = int(torch.empty((), dtype=torch.int64).random_(generator=common.clone_state()))
        return common

    def seed_noise(self, step: int) -> torch.Generator:
        """The generator of this process's own noise, seeded at a report so that a run from there draws the same."""
        return self._noise.manual_seed(hash((self._seed, self.rank, step)) & (2**63 - 1))

    def slice(self, index: Tensor) -> Tensor:
        """This process's part of row indices [*batch_shape, B]."""
        return index.chunk(self.size, -1)[self.rank]

    def mean_(
        self, terms: ElboTerms | None, parameters: Sequence[Tensor], batch_shape: Sequence[int]
    ) -> ElboTerms | None:
        """Means over processes of the terms and, in place, of gradients; None where an objective is not finite."""
        if not self.alone:
            nothing = torch.full((2, *batch_shape), torch.nan, device=parameters[0].device)
            numbers = nothing if terms is None else torch.stack([terms.expected_log_likelihood, terms.kl])
            gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
            add_up_([*gradients, numbers], "adding gradients up")
            for gradient in gradients:
                gradient.div_(self.size)
            if terms is not None:
                fit, kl = (numbers / self.size).unbind()
                terms = ElboTerms(fit, kl, terms.f)
        return terms if terms is not None and math.isfinite(terms.total.sum().item()) else None

    def agree_on(self, history: History, step: int) -> None:
        """End the run in all processes where a callback of one has ended it."""
        if any(gather(history.was_stopped, f"at step {step}")) and not history.was_stopped:
            history.stopped = f"stopped by a callback of another process at step {step}"
        self.seed_noise(step)

"""The training loop: Adam on the objective, with averaging, reports and checkpoints as hooks around it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from vmg.likelihoods import Likelihood
from vmg.math.linalg import NotPositiveDefiniteError
from vmg.model_file import fingerprint_function, fingerprint_modules, fingerprint_tensors
from vmg.nn.bayesian import use_generator
from vmg.objective import ElboTerms, Objective
from vmg.training.checkpoint import Checkpoint, KeptRun, LastGood, RunState
from vmg.training.distributed import Processes, Step
from vmg.training.grouped_parameters import GroupedParameters
from vmg.training.progress import Average, Callback, Finished, History, Hook, Reports, Schedule, constant
from vmg.training.rows import Batch, TrainingRows, minibatches

__all__ = ["differentiate", "train"]

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
    kl_weight: float | Sequence[float] = 1.0,
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
    batch, and all end with the same bits. All must be given the same rows, which may be mapped files; see
    :mod:`vmg.training.distributed`.

    Args:
        network, likelihood: trained in place.
        x, y: all training rows, [N, ...], or [*batch_shape, N, ...] where replicas see different data.
        n_steps: optimiser steps.
        batch_size: rows per step and replica, of all processes together.
        learning_rate, schedule: Adam's rate and its factor over time.
        averaging: decay of the exponential average of parameters that is kept for prediction; None keeps the last.
        kl_weight: 1 is the objective of :func:`vmg.elbo`. A sequence gives one weight for each step and starts again
            when it ends; with mean 1 over an epoch it gives the objective of the epoch.
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
    rows = TrainingRows(x, y, weight, n_rows, batch_shape)
    n_batch = min(batch_size, int(rows.sizes.min()))
    kl_weights = list(kl_weight) if isinstance(kl_weight, Sequence) else [kl_weight]
    both, processes = nn.ModuleList([network, likelihood]), Processes()
    generator = processes.start_equal(both, x, generator)
    batches = minibatches(rows.sizes, batch_size, batch_shape, generator)
    settings: dict[str, Any] = {
        "n_steps": n_steps,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "averaging": averaging,
        "report_every": report_every,
        "kl_weight": kl_weights if isinstance(kl_weight, Sequence) else kl_weight,
        "rows": list(x.shape),
        "parameters": sum(p.numel() for p in both.parameters()),
    }
    if checkpoint is not None:
        settings |= _fingerprints(both, rows.tensors() | {"n_rows": n_rows}, schedule, generator)

    with GroupedParameters(both.parameters()) as parameters, _train_mode(both):
        fused = all(tensor.device.type in FUSED for tensor in parameters.tensors)
        optimiser = torch.optim.Adam(parameters.tensors, lr=learning_rate, fused=fused)
        average = None if averaging is None else Average(parameters, averaging)
        kept, history, done = None, History(), 0
        if checkpoint is not None:
            state = RunState(both, parameters, optimiser, average, batches, generator)
            kept = KeptRun(checkpoint, settings, state, history)
            done = kept.resume(n_steps)
        use_generator(network, processes.noise_generator(generator, done))
        objective = Objective(network, likelihood, rows.n_data)
        evaluate = processes.share(partial(differentiate, objective, parameters), parameters)
        last_good = LastGood(network, likelihood, parameters)
        reports = Reports(history, n_steps, callbacks, average, last_good.restore, x.device)
        after_step: list[Hook] = [reports.add, *([] if average is None else [average.update])]
        at_report: list[Hook] = [last_good.keep, reports.report, processes.agree_on(history)]
        at_report += [kept.write] if kept is not None and processes.rank == 0 else []

        for step in range(done + 1, n_steps + 1):
            rate = learning_rate * schedule((step - 1) / n_steps)
            batch = rows.take(processes.slice(next(batches)))
            terms = _finite_terms(evaluate, processes.weigh(batch, n_batch), kl_weights[(step - 1) % len(kl_weights)])
            if terms is None:
                raise last_good.failure(step, rate, batch.x)
            optimiser.param_groups[0]["lr"] = rate
            optimiser.step()
            joined, (_, y_joined, weight_joined) = processes.joined(likelihood, terms, batch, n_batch)
            objective.update_likelihood(joined, y_joined, weight_joined)
            finished = Finished(step, rate, batch, terms)
            for hook in after_step:
                hook(finished)
            if step % report_every == 0 or step == n_steps:
                for hook in at_report:
                    hook(finished)
            if history.was_stopped:
                break
        if average is not None:
            average.put_in_place()
    return history


def differentiate(
    objective: Objective, parameters: GroupedParameters, batch: Batch, kl_weight: float = 1.0
) -> ElboTerms:
    """The objective at a minibatch; the gradient of its negative is left in the parameters."""
    terms = objective.evaluate(*batch, kl_weight)
    parameters.zero_grad()
    (-terms.total.sum()).backward()  # replicas are independent: a sum leaves each one's gradient as it is
    return ElboTerms(*(term.detach() for term in terms if term is not None))


@contextmanager
def _train_mode(modules: nn.Module) -> Iterator[None]:
    """Set train mode inside the block and eval mode afterwards."""
    modules.train()
    try:
        yield
    finally:
        modules.eval()


def _finite_terms(evaluate: Step, batch: Batch, kl_weight: float) -> ElboTerms | None:
    """The objective at a batch, with its gradient left in the parameters; None where it is not finite."""
    try:
        terms = evaluate(batch, kl_weight)
    except NotPositiveDefiniteError:
        return None
    return terms if math.isfinite(terms.total.sum().item()) else None


def _fingerprints(
    modules: nn.Module, rows: Mapping[str, Tensor | None], schedule: Schedule, generator: torch.Generator | None
) -> dict[str, str]:
    """Digests that a run must share with the file that it goes on from, by the names that a refusal gives."""
    digests = {f"{name}, bit for bit": fingerprint_tensors({name: tensor}) for name, tensor in rows.items()}
    digests["layers and their options"] = fingerprint_modules(modules)
    digests["schedule of the learning rate"] = fingerprint_function(schedule)
    if generator is not None:
        digests["seed"] = fingerprint_tensors({"generator": generator.get_state()})
        digests["parameters at the start"] = fingerprint_tensors(modules.state_dict())
    return digests

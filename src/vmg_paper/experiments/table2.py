"""Table 2: test errors on permutation-invariant MNIST, and what the networks' doubt is worth [LW16, §4.2].

The number of pseudo-points, where several are given, is chosen on the last 10,000 training images. Test images, and
those of other sets, are read once, to score what was chosen. A refit trains the network that is scored on all training
images, once nothing is left to choose.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import vmg
from vmg import metrics
from vmg.likelihoods import CategoricalLikelihood
from vmg.nn.mlp import MLP
from vmg.prediction import ClassPrediction
from vmg.training import Callback, Checkpoint, History, train
from vmg_paper.experiments import results_file
from vmg_paper.experiments.digits import Array, Digits, Rows, draw_probabilities, load_digits, mean_probabilities, score
from vmg_paper.experiments.runner import Watch, unwatched
from vmg_paper.experiments.table2_methods import DIGIT_METHODS, N_CLASSES, SCHEDULES, DigitMethod, Recipe, parse_size

__all__ = [
    "AVERAGES",
    "MEAN",
    "Table2",
    "Task",
    "answered",
    "chosen_already",
    "execute",
    "fit",
    "key",
    "read_lines",
    "tasks",
    "validate",
]

MEAN = "mean network"
AVERAGES = {"20 draws": 20, "100 draws": 100}
"""Draws that an average is taken over, all members of an ensemble together."""

REPORTS_PER_EPOCH = 10  # the run's state is kept once an epoch


class Task(NamedTuple):
    """One line of the results that is still to be earned."""

    method: str
    size: str
    seed: int
    epochs: int
    points: tuple[int, ...]
    """Numbers of pseudo-points to choose from; empty where a method has none."""
    max_noise: float | None
    """Limit on √α; None where a method has no pseudo-points."""
    refit: bool = False
    """Whether the network that is scored trains on the validation images too."""
    raw: bool = False
    """Whether pixels are as they are, in [0, 1], as in the paper; else the mean training image is taken off."""
    learning_rate: float | None = None
    """Learning rate of Adam, where it is not the method's own."""


def key(record: results_file.Record) -> Task:
    """The task that a line of the results answers."""
    tried = tuple(one["points"] for one in record["tried"] if one["points"] is not None)
    run = record["method"], record["size"], record["seed"], record["epochs"]
    rate = _unless_own(record["config"]["learning_rate"], DIGIT_METHODS[record["method"]])
    return Task(*run, tried, record["max_noise"], record["refit"], record["raw"], rate)


def _unless_own(rate: float | None, method: DigitMethod) -> float | None:
    """The rate, or None for the method's own, so that saying it makes no other task."""
    return None if rate == method.learning_rate else rate


def tasks(
    methods: Sequence[str],
    sizes: Sequence[str] | None,
    *,
    seeds: Sequence[int],
    epochs: int,
    points: Sequence[int],
    max_noise: float,
    refit: bool = False,
    raw: bool = False,
    learning_rate: float | None = None,
    out: Path,
) -> tuple[list[Task], list[Task]]:
    """All that is asked for, and the part of it that is not in ``out`` yet; without ``sizes`` each method's own."""

    def task(name: str, size: str, seed: int) -> Task:
        method = DIGIT_METHODS[name]
        tried, limit = (tuple(points), max_noise) if method.has_points else ((), None)
        return Task(name, size, seed, epochs, tried, limit, refit, raw, _unless_own(learning_rate, method))

    wanted = [
        task(name, size, seed)
        for seed in seeds
        for name in methods
        for size in (DIGIT_METHODS[name].sizes if sizes is None else sizes)
    ]
    done = answered(out)
    return wanted, [one for one in wanted if one not in done]


def read_lines(out: Path) -> list[results_file.Record]:
    """The lines of Table 2 in ``out``."""
    return [line for line in results_file.read(out) if line["experiment"] == "table2"]


def answered(out: Path) -> list[Task]:
    """All that ``out`` holds."""
    return [key(line) for line in read_lines(out)]


def chosen_already(task: Task, out: Path) -> results_file.Record | None:
    """A line of ``out`` that has this choice of pseudo-points behind it, of another seed, or of no refit.

    One seed chooses for all: its validation scores stand in every line.
    """
    if len(task.points) > 1:
        for record in read_lines(out):
            if key(record)._replace(seed=task.seed, refit=task.refit) == task:
                return record
    return None


@dataclass
class Table2:
    """The experiment, for :func:`~vmg_paper.experiments.runner.run`."""

    out: Path
    checkpoints: Path

    @cached_property
    def digits(self) -> Digits:
        """The images, read when the first task needs them."""
        return load_digits()

    def execute(self, task: Task, watch: Watch) -> list[results_file.Record]:
        earlier = chosen_already(task, self.out)
        record = execute(task, self.digits, earlier=earlier, checkpoints=self.checkpoints, watch=watch)
        return [record]


def execute(
    task: Task,
    digits: Digits,
    *,
    earlier: results_file.Record | None = None,
    checkpoints: Path | None = None,
    watch: Watch = unwatched,
) -> results_file.Record:
    """Train, choose on the validation images unless ``earlier`` has done so, and score on the test images: one record.

    With ``checkpoints``, a folder, every network's run keeps its state there and goes on from it after a kill.
    """
    method = DIGIT_METHODS[task.method]
    if not task.raw:
        digits = digits.centred()
    recipe = method.recipe(task.epochs, task.learning_rate)
    histories: list[History] = []

    def fit_members(points: int | None, rows: Rows) -> list[MLP]:
        """The network, or all members of an ensemble."""
        networks = []
        for seed in range(task.seed, task.seed + method.n_members):
            run = [f"{method.member or task.method} {task.size}", f"seed {seed}", f"{task.epochs} epochs"]
            run += [] if points is None else [f"{points} points", f"max noise {task.max_noise}"]
            run += [] if rows is digits.train else ["all images"]
            run += ["raw"] if task.raw else []
            run += [] if task.learning_rate is None else [f"rate {task.learning_rate:g}"]
            label = ", ".join(run)
            file = None if checkpoints is None else checkpoints / f"{re.sub(r'[, ]+', '-', label)}.safetensors"
            network = method.make(parse_size(task.size), points or 0, task.max_noise or 0)
            with watch(label) as tell:
                histories.append(fit(network, rows, recipe, seed, file=file, tell=tell))
            networks.append(network)
        return networks

    trained: dict[int | None, list[MLP]] = {}
    if earlier is not None:
        points, tried = earlier["points"], earlier["tried"]
    elif len(task.points) < 2:
        points = task.points[0] if task.points else None
        tried = [{"points": points}]
    else:
        tried = []
        for number in task.points:
            trained[number] = fit_members(number, digits.train)
            tried.append({"points": number, **validate(trained[number], digits)})
        best = min(tried, key=lambda one: (one["validation_error_percent"], -one["validation_log_likelihood"]))
        points = best["points"]
    if task.refit:
        networks = fit_members(points, digits.all_training)
    else:
        networks = trained[points] if points in trained else fit_members(points, digits.train)
    scores = _score(networks, digits, task.seed, is_random=method.is_random)
    return {
        "experiment": "table2",
        "method": task.method,
        "size": task.size,
        "seed": task.seed,
        "points": points,
        "epochs": task.epochs,
        "max_noise": task.max_noise,
        "refit": task.refit,
        "raw": task.raw,
        "error_percent": scores[MEAN]["error_percent"],
        "validation_error_percent": None if task.refit else validate(networks, digits)["validation_error_percent"],
        "scores": scores,
        "tried": tried,
        "seconds": round(sum(history.last.seconds for history in histories), 3),
        "steps": histories[-1].last.step,
        "config": method.config(recipe),
        "version": vmg.__version__,
    }


def fit(network: MLP, rows: Rows, recipe: Recipe, seed: int, *, file: Path | None = None, tell: Callback) -> History:
    """Start the network anew and train it; ``file`` keeps the run's state, ``tell`` hears of it ten times an epoch."""
    generator = torch.Generator().manual_seed(seed)
    network.reset_parameters(generator)
    per_epoch = max(1, len(rows.x) // recipe.batch_size)
    report_every = max(1, per_epoch // REPORTS_PER_EPOCH)
    return train(
        network,
        CategoricalLikelihood(),
        rows.x,
        rows.y,
        n_steps=recipe.epochs * per_epoch,
        batch_size=recipe.batch_size,
        learning_rate=recipe.learning_rate,
        schedule=SCHEDULES[recipe.schedule],
        averaging=recipe.averaging,
        callbacks=[tell],
        report_every=report_every,
        generator=generator,
        checkpoint=None if file is None else Checkpoint(file, every=max(1, per_epoch // report_every)),
    )


def validate(networks: Sequence[MLP], digits: Digits) -> dict[str, float]:
    """Scores of the mean network, or of the members' average, on the validation images."""
    labels = digits.validation.labels
    predicted = _prediction(_mean_probabilities(networks, digits.validation.x))
    return {
        "validation_error_percent": 100 * metrics.error_rate(predicted.probabilities, labels),
        "validation_log_likelihood": metrics.log_likelihood(predicted.log_prob(labels)),
    }


def _score(networks: Sequence[MLP], digits: Digits, seed: int, *, is_random: bool) -> dict[str, Any]:
    """Scores of the mean network and of averages over draws, which are the same ones for all sets of images."""
    sets = {"test": digits.test.x, **digits.unknown}
    x = torch.cat(list(sets.values()))
    ends = np.cumsum([len(images) for images in sets.values()])[:-1]
    predictions = {MEAN: _mean_probabilities(networks, x)}
    if is_random:
        most, members = max(AVERAGES.values()), len(networks)
        drawn = np.stack([draw_probabilities(one, x, max(1, most // members), seed) for one in networks])
        for name, n_draws in AVERAGES.items():
            predictions[name] = drawn[:, : max(1, n_draws // members)].reshape(-1, *drawn.shape[-2:])
    scores = {}
    for name, samples in predictions.items():
        parts = dict(zip(sets, map(_prediction, np.split(samples, ends, axis=1)), strict=True))
        scores[name] = score(parts.pop("test"), digits.test.labels, parts)
    return scores


def _mean_probabilities(networks: Sequence[MLP], x: Tensor) -> Array:
    return np.stack([mean_probabilities(network, x) for network in networks])


def _prediction(samples: Array) -> ClassPrediction:
    return ClassPrediction(samples, np.arange(N_CLASSES))

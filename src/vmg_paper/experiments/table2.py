"""Table 2: test errors on permutation-invariant MNIST, and what the networks' doubt is worth [LW16, §4.2].

Settings are chosen by the errors on the last 10,000 training images, which every line has. Test images, and those of
other sets, are read once, to score. A refit trains on all training images, once nothing is left to choose.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import vmg
from vmg import metrics
from vmg.likelihoods import CategoricalLikelihood
from vmg.nn.mlp import MLP
from vmg.prediction import ClassPrediction, draw_functions
from vmg.training import Callback, Checkpoint, History, train
from vmg_paper.experiments.digits import UNKNOWN, Array, Digits, Rows, mean_probabilities, score
from vmg_paper.experiments.published import PAPER_TABLE2
from vmg_paper.experiments.results_file import Record, Watch, markdown, mean_and_error, read_experiment, unwatched
from vmg_paper.experiments.table2_methods import (
    DIGIT_METHODS,
    N_CLASSES,
    SCHEDULES,
    Recipe,
    n_weights,
    parse_size,
)

__all__ = [
    "AVERAGES",
    "HEADER",
    "MEAN",
    "Task",
    "execute",
    "fit",
    "foremost",
    "key",
    "paper_error",
    "render",
    "summarise",
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
    points: int | None
    """Pseudo-points of every layer; None where a method has none."""
    max_noise: float | None
    """Limit on √α; None where a method has no pseudo-points."""
    learning_rate: float
    refit: bool = False
    """Whether the network that is scored trains on the validation images too."""
    raw: bool = False
    """Whether pixels are as they are, in [0, 1], as in the paper; else the mean training image is taken off."""


def key(record: Record) -> Task:
    """The task that a line of the results answers."""
    kept = {name: record[name] for name in Task._fields if name != "learning_rate"}
    return Task(**kept, learning_rate=record["config"]["learning_rate"])


def tasks(
    methods: Sequence[str],
    sizes: Sequence[str] | None,
    *,
    seeds: Sequence[int],
    epochs: int,
    points: int,
    max_noise: float,
    refit: bool = False,
    raw: bool = False,
    learning_rate: float | None = None,
    out: Path,
) -> tuple[list[Task], list[Task]]:
    """All that is asked for, and the part of it that is not in ``out`` yet.

    Without ``sizes`` each method has its own, and so it is with ``learning_rate``.
    """

    def task(name: str, size: str, seed: int) -> Task:
        method = DIGIT_METHODS[name]
        given = {"points": points, "max_noise": max_noise} if method.has_points else {"points": None, "max_noise": None}
        rate = learning_rate or method.learning_rate
        return Task(name, size, seed, epochs, **given, learning_rate=rate, refit=refit, raw=raw)

    wanted = [
        task(name, size, seed)
        for seed in seeds
        for name in methods
        for size in (DIGIT_METHODS[name].sizes if sizes is None else sizes)
    ]
    done = [key(line) for line in read_experiment(out, "table2")]
    return wanted, [one for one in wanted if one not in done]


def execute(task: Task, digits: Digits, *, checkpoints: Path | None = None, watch: Watch = unwatched) -> Record:
    """Train the network, or all members of an ensemble, and score on the test images: one record.

    With ``checkpoints``, a folder, every network's run keeps its state there and goes on from it after a kill.
    """
    method = DIGIT_METHODS[task.method]
    if not task.raw:
        digits = digits.centred()
    rows = digits.all_training if task.refit else digits.train
    recipe = method.recipe(task.epochs, task.learning_rate)
    histories: list[History] = []
    networks = []
    for seed in range(task.seed, task.seed + method.n_members):
        run = [f"{method.member or task.method} {task.size}", f"seed {seed}", f"{task.epochs} epochs"]
        run += [] if task.points is None else [f"{task.points} points", f"max noise {task.max_noise}"]
        run += ["all images"] * task.refit + ["raw"] * task.raw + [f"rate {task.learning_rate:g}"]
        label = ", ".join(run)
        file = None if checkpoints is None else checkpoints / f"{re.sub(r'[, ]+', '-', label)}.safetensors"
        network = method.make(parse_size(task.size), task.points or 0, task.max_noise or 0)
        with watch(label) as tell:
            histories.append(fit(network, rows, recipe, seed, file=file, tell=tell))
        networks.append(network)
    scores = _score(networks, digits, task.seed, is_random=method.is_random)
    return {
        "experiment": "table2",
        "method": task.method,
        "size": task.size,
        "seed": task.seed,
        "points": task.points,
        "epochs": task.epochs,
        "max_noise": task.max_noise,
        "refit": task.refit,
        "raw": task.raw,
        "error_percent": scores[MEAN]["error_percent"],
        "validation_error_percent": None if task.refit else validate(networks, digits)["validation_error_percent"],
        "scores": scores,
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
        functions = [draw_functions(one, x, max(1, most // members), seed) for one in networks]
        drawn = torch.stack(functions).softmax(-1).numpy()  # [members, S, N, K]
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


SHOWN_RATE = 5  # percent rejected
HEADER = (
    "method",
    "size",
    "prediction",
    "points",
    "epochs",
    "max noise",
    "rate",
    "images",
    "pixels",
    "seeds",
    "error %",
    "paper",
    "validation error %",
    "log-likelihood",
    "ECE",
    "Brier",
    *(f"AUROC {name}" for name in UNKNOWN),
    f"error % with {SHOWN_RATE} % rejected",
    "s",
)
RUN = ("method", "size", "epochs", "points", "max_noise", "learning_rate", "refit", "raw")
"""Fields that agree in all lines of one run; the seeds differ."""
IMAGES = {False: "50,000", True: "all 60,000"}
"""That a network trained on."""
PIXELS = {False: "less mean", True: "as they are"}
"""That a network saw."""
PREDICTIONS = (MEAN, *AVERAGES)
VALIDATED = "validation_error_percent"
SCORES = ("error_percent", "log_likelihood", "ece", "brier")


def paper_error(method: str, size: str) -> float | None:
    """The paper's test error in percent; a figure without a size stands beside all sizes."""
    return PAPER_TABLE2.get((method, size), PAPER_TABLE2.get((method, "")))


def summarise(lines: Sequence[Record]) -> list[Record]:
    """Mean and standard error over seeds for each run and prediction, methods in the paper's kind of order.

    Seeds belong together where method, size, epochs, the chosen number of points, the limit on the noise, the learning
    rate, the images and their pixels agree. A seed counts once, by its last line.
    """
    groups: dict[tuple[Any, ...], dict[int, Record]] = defaultdict(dict)
    for line in lines:
        one = {**line, "learning_rate": line["config"]["learning_rate"]}
        groups[_run(one)][line["seed"]] = one
    known = list(DIGIT_METHODS)

    def place(members: Sequence[Record]) -> tuple[float, ...]:
        one = members[0]
        method, size = known.index(one["method"]), n_weights(one["size"])
        run = one["raw"], one["refit"], one["epochs"], one["points"] or 0, one["max_noise"] or 0, one["learning_rate"]
        return method, size, *run

    return [
        _row(name, members)
        for members in sorted((list(group.values()) for group in groups.values()), key=place)
        for name in PREDICTIONS
        if name in members[0]["scores"]
    ]


def _row(prediction: str, members: Sequence[Record]) -> Record:
    scores = [member["scores"][prediction] for member in members]
    row: Record = {
        **{name: members[0][name] for name in RUN},
        "prediction": prediction,
        "seeds": len(members),
        "chosen_by": _chosen_by(members),
        "paper": paper_error(members[0]["method"], members[0]["size"]),
    }
    for name in SCORES:
        row[name], row[f"{name}_error"] = mean_and_error([one[name] for one in scores])
    row["seconds"], row["seconds_error"] = mean_and_error([member["seconds"] for member in members])
    validated = [member[VALIDATED] for member in members]  # a refit has none
    row[VALIDATED], row[f"{VALIDATED}_error"] = (None, None) if row["refit"] else mean_and_error(validated)
    row["auroc"] = {
        unknown: {kind: _mean_or_none([one["auroc"][unknown][kind] for one in scores]) for kind in kinds}
        for unknown, kinds in scores[0]["auroc"].items()
    }
    row["rejection"] = {
        "rates_percent": scores[0]["rejection"]["rates_percent"],
        "error_percent": np.mean([one["rejection"]["error_percent"] for one in scores], axis=0).tolist(),
    }
    return row


def _chosen_by(members: Sequence[Record]) -> float | None:
    """The validation error that a number of points was chosen by, where there were several."""
    chosen = [one for member in members for one in member.get("tried", ()) if one["points"] == member["points"]]
    return next((one[VALIDATED] for one in chosen if VALIDATED in one), None)


def _mean_or_none(values: Sequence[float | None]) -> float | None:
    given = [value for value in values if value is not None]
    return float(np.mean(given)) if given else None


def render(summary: Sequence[Record]) -> str:
    """The summary as a table; the paper's error is marked + where ours, rounded as it is, is no worse, else −."""
    return markdown(HEADER, list(map(_cells, summary)))


def _cells(row: Record) -> tuple[str, ...]:
    paper = row["paper"]
    mark = "" if paper is None else f"{paper:.2f} {'+' if round(row['error_percent'], 2) <= paper else '−'}"
    return (
        row["method"],
        row["size"],
        row["prediction"],
        "" if row["points"] is None else str(row["points"]),
        str(row["epochs"]),
        "" if row["max_noise"] is None else f"{row['max_noise']:g}",
        f"{row['learning_rate']:g}",
        IMAGES[row["refit"]],
        PIXELS[row["raw"]],
        str(row["seeds"]),
        _with_error(row, "error_percent", 2),
        mark,
        "" if row["refit"] else _with_error(row, VALIDATED, 2),
        _with_error(row, "log_likelihood", 4),
        f"{row['ece']:.4f}",
        f"{row['brier']:.4f}",
        *(_auroc(row["auroc"][name]) for name in UNKNOWN),
        f"{row['rejection']['error_percent'][row['rejection']['rates_percent'].index(SHOWN_RATE)]:.2f}",
        f"{row['seconds']:.0f}",
    )


NEAR = 0.05  # percent: an error that is this much above the paper's, or less, is near it


def render_page(summary: Sequence[Record]) -> str:
    """The tables of the page: as the paper did it, the foremost run of each method and size, and every score."""
    alike = [row for row in summary if row["raw"] and not row["refit"]]
    header = ("method", "size", "seeds", "error %", "100 draws, error %", "paper", f"within {NEAR}")
    parts = ["## Like for like: 50,000 images, pixels as they are", "", markdown(header, list(_pairs(alike))), ""]
    words = ("method", "size", "prediction", "images", "seeds", "error %", "paper", "log-likelihood", "ECE", "AUROC")
    rows = [_short_cells(row) for row in foremost(summary) if row["prediction"] in (MEAN, PREDICTIONS[-1])]
    parts += ["## Our recipe: images less their mean, all 60,000 where run", "", markdown(words, rows), ""]
    return "\n".join([*parts, "## Every score", "", render(summary)])


def _pairs(rows: Sequence[Record]) -> Iterator[tuple[str, ...]]:
    """The mean network beside the average over most draws, for each run."""
    runs: dict[tuple[Any, ...], dict[str, Record]] = defaultdict(dict)
    for row in rows:
        runs[_run(row)][row["prediction"]] = row
    for run in runs.values():
        one, drawn, paper = run[MEAN], run.get(PREDICTIONS[-1]), run[MEAN]["paper"]
        errors = [_with_error(row, "error_percent", 2) if row else "" for row in (one, drawn)]
        near = "" if paper is None else "yes" if round(one["error_percent"], 2) <= round(paper + NEAR, 2) else "no"
        yield one["method"], one["size"], str(one["seeds"]), *errors, "" if paper is None else f"{paper:.2f}", near


def _short_cells(row: Record) -> tuple[str, ...]:
    words = row["method"], row["size"], row["prediction"], f"{IMAGES[row['refit']]}, {PIXELS[row['raw']]}"
    paper = "" if row["paper"] is None else f"{row['paper']:.2f}"
    scores = _with_error(row, "error_percent", 2), paper, f"{row['log_likelihood']:.3f}", f"{row['ece']:.4f}"
    return *words, str(row["seeds"]), *scores, " / ".join(f"{row['auroc'][name]['entropy']:.3f}" for name in UNKNOWN)


def _with_error(row: Record, name: str, digits: int) -> str:
    text = f"{row[name]:.{digits}f}"
    return text if row["seeds"] == 1 else f"{text} ± {row[f'{name}_error']:.{digits}f}"


def _auroc(kinds: dict[str, Any]) -> str:
    """AUROC by entropy and, where there are several draws, by mutual information."""
    return " / ".join(f"{kinds[kind]:.3f}" for kind in ("entropy", "mutual_information") if kinds[kind] is not None)


def foremost(summary: Sequence[Record]) -> list[Record]:
    """One run of each method and size.

    Rather on pixels less their mean, and rather on all images; then the one with the fewest validation images wrong,
    the last of such. A refit goes by the same run on fewer images, or by what its number of points was chosen by.
    """
    validated = {_run(row): row[VALIDATED] for row in summary if not row["refit"]}

    def merit(row: Record) -> tuple[bool, bool, float]:
        error = validated.get(_run({**row, "refit": False}), row["chosen_by"])
        return not row["raw"], row["refit"], -math.inf if error is None else -error

    runs = {(row["method"], row["size"]): _run(row) for row in sorted(summary, key=merit)}
    return [row for row in summary if runs[row["method"], row["size"]] == _run(row)]


def _run(row: Record) -> tuple[Any, ...]:
    return tuple(row[name] for name in RUN)

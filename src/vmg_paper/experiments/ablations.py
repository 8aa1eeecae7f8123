"""Ablations: the paper's network with one thing changed, on small tables, and the number of parameters of each form.

Every variant is fitted to the same splits from the same seed, so differences to the paper's form are taken split by
split. Networks, points and limits on α are the paper's. Differs from its recipe: the prior of the noise is weak and in
standard units (the paper's own sets a floor that would hide differences of the log-likelihood), and Adam starts at
0.01 and falls along a cosine for 6,000 steps of 32 rows. On MNIST, one seed each, it starts at 1e-3 and falls for
five passes.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch

import vmg
from vmg.nn import MLP
from vmg.prediction import ClassPrediction
from vmg_paper.baselines import Baseline, GlobalInducingRegressor, MatrixGaussian, MeanField
from vmg_paper.data import load_table
from vmg_paper.experiments.digits import Digits, mean_probabilities
from vmg_paper.experiments.digits import score as score_classes
from vmg_paper.experiments.results_file import Record, Watch, markdown, mean_and_error
from vmg_paper.experiments.table1_methods import TableMethod, hidden_layers, paper_limit, paper_points
from vmg_paper.experiments.table2 import fit
from vmg_paper.experiments.table2_methods import (
    DIGIT_METHODS,
    MAX_NOISE,
    MAX_POINTS,
    N_CLASSES,
    DigitMethod,
    Recipe,
    parse_size,
)

__all__ = [
    "ABLATIONS",
    "BASE",
    "DATASETS",
    "IMAGE_VARIANTS",
    "MNIST",
    "N_SPLITS",
    "count_rows",
    "differences",
    "execute_images",
    "n_parameters",
    "render",
]

DATASETS = ("boston", "concrete", "energy", "wine", "yacht")
N_SPLITS = 5
STEPS, BATCH = 6_000, 32
BASE = "paper"
"""The form that others are compared with."""

Options = dict[str, Any]


def _estimator(table: str, seed: int, baseline: Baseline) -> Any:
    n_train = round(0.9 * len(load_table(table).y))
    options = {"batch_size": BATCH, "max_iter": math.ceil(STEPS / (n_train // BATCH)), "random_state": seed}
    return baseline.regressor(hidden_layers(table), **options)


def _global_inducing(table: str, seed: int) -> GlobalInducingRegressor:
    return GlobalInducingRegressor(hidden_layers(table), n_steps=STEPS, batch_size=BATCH, random_state=seed)


def _variant(name: str, summary: str, change: Callable[[str], Options] | None = None, **layer: Any) -> TableMethod:
    """The paper's form with other options of the layer, or what ``change`` says for a table."""

    def make(table: str, seed: int) -> Any:
        options: Options = {"n_pseudo": paper_points(table), "max_noise": paper_limit(table), "layer": layer}
        return _estimator(table, seed, MatrixGaussian(**options | (change(table) if change else {})))

    return TableMethod(name, summary, make)


def _points(count: Callable[[int, int], int]) -> Callable[[str], Options]:
    """``count`` gives the points of a layer from the paper's number and R, its inputs and a one."""

    def change(table: str) -> Options:
        sizes = (INPUTS[table], *hidden_layers(table))
        return {"n_pseudo": tuple(count(paper_points(table), n_inputs + 1) for n_inputs in sizes)}

    return change


def _none(table: str) -> Options:
    return {"n_pseudo": 0}


RANK_ONE: Options = {"row_covariance": "rank_one", "column_covariance": "rank_one"}
DENSE: Options = {"row_covariance": "dense", "column_covariance": "dense"}
VARIANTS = (
    _variant(BASE, "diagonal U and V, pseudo-data, Gamma priors, one α a layer, the paper's KL"),
    TableMethod(
        "factorised",
        "a variance for every weight, no pseudo-data",
        lambda table, seed: _estimator(table, seed, MeanField()),
    ),
    TableMethod(
        "global inducing points",
        "pseudo-data of the whole network, 100 that start at rows; a true lower bound",
        _global_inducing,
    ),
    _variant("no pseudo-data", "diagonal U and V alone", _none),
    _variant("zero mean", "M = 0: pseudo-data alone carry the mean (eq. 10)", zero_mean=True),
    _variant("conditional KL", "a true lower bound: the KL of what is drawn", kl="conditional"),
    _variant("isotropic prior", "precisions of the weights fixed at one", lambda table: {"prior": "isotropic"}),
    _variant("gradient Gammas", "those precisions by gradient, as in the paper", lambda table: {"conjugate": False}),
    _variant("factored α", "a factor of √α for each point and each dimension", pseudo_noise="factored"),
    _variant("rank one", "U and V diagonal plus rank one in the root", **RANK_ONE),
    _variant("dense", "U and V dense", **DENSE),
    _variant("P = 1", "one pseudo-point a layer", _points(lambda paper, rows: 1)),
    _variant("P = 2", "two", _points(lambda paper, rows: 2)),
    _variant("P = 20", "twenty", _points(lambda paper, rows: 20)),
    _variant("P < R", "the paper's number, at most R - 1", _points(lambda paper, rows: min(paper, rows - 1))),
    _variant("P = R", "as many as a layer has rows", _points(lambda paper, rows: rows)),
    _variant("rank one, no pseudo-data", "U and V as named, alone", _none, **RANK_ONE),
    _variant("dense, no pseudo-data", "U and V as named, alone", _none, **DENSE),
)
ABLATIONS = {variant.name: variant for variant in VARIANTS}

# -- images -----------------------------------------------------------------------------------------------------------

MNIST, IMAGE_SIZE = "MNIST 3x150", "3x150"
IMAGE_RECIPE = Recipe(epochs=5, learning_rate=1e-3, averaging=0.999, schedule="cosine")
_LAYER, _FACTORISED = DIGIT_METHODS["vmg"], DIGIT_METHODS["mean-field"]


def _image_variant(points: int = MAX_POINTS, **options: Any) -> tuple[int, DigitMethod]:
    return points, replace(_LAYER, options={**_LAYER.options, **options})


IMAGE_VARIANTS = {
    BASE: _image_variant(),
    "factorised": (0, _FACTORISED),
    "no pseudo-data": _image_variant(0),
    "zero mean": _image_variant(zero_mean=True),
    "P = 50": _image_variant(50),
    "one α a layer": _image_variant(pseudo_noise="layer"),
    "conditional KL": _image_variant(kl="conditional"),
    "rank one": _image_variant(**RANK_ONE),
}


def execute_images(name: str, digits: Digits, watch: Watch) -> Record:
    """Train one variant on the 50,000 images, pixels as they are, and score its mean network on the test images."""
    points, method = IMAGE_VARIANTS[name]
    network = method.make(parse_size(IMAGE_SIZE), points, MAX_NOISE)
    with watch(f"{MNIST}: {name}") as tell:
        history = fit(network, digits.train, IMAGE_RECIPE, 0, tell=tell)
    found = ClassPrediction(mean_probabilities(network, digits.test.x)[None], np.arange(N_CLASSES))
    return {
        "experiment": "ablations",
        "method": name,
        "dataset": MNIST,
        "split": 0,
        "seed": 0,
        **score_classes(found, digits.test.labels, {}),
        "training_log_likelihood": history.last.expected_log_likelihood,
        "points": points,
        "seconds": round(history.last.seconds, 3),
        "steps": history.last.step,
        "config": method.config(IMAGE_RECIPE),
        "version": vmg.__version__,
    }


# -- parameters -------------------------------------------------------------------------------------------------------

INPUTS = {
    "boston": 13,
    "concrete": 8,
    "energy": 8,
    "kin8nm": 8,
    "naval": 16,
    "power": 4,
    "protein": 9,
    "wine": 11,
    "yacht": 6,
    "year": 90,
}
IMAGES = {MNIST: (784, 150, 150, 150, 10), "MNIST 3x750": (784, 750, 750, 750, 10)}


def n_parameters(sizes: Sequence[int], **options: Any) -> int:
    """Parameters of the posterior of a network of these sizes: M, U, V, Ã, B̃ and an α for each of these two."""
    with warnings.catch_warnings(), torch.device("meta"):
        warnings.filterwarnings("ignore", message="n_pseudo should be <")  # the paper's own choice
        network = MLP(sizes[0], sizes[1:-1], sizes[-1], **options)
    return sum(parameter.numel() for parameter in network.parameters())


def count_rows() -> list[tuple[str, ...]]:
    """Parameters of each form at the paper's settings, and their ratio to a factorised posterior."""
    cases: list[tuple[str, tuple[int, ...], int]] = [
        (name, (n_inputs, *hidden_layers(name), 1), paper_points(name)) for name, n_inputs in INPUTS.items()
    ]
    cases += [(name, sizes, MAX_POINTS) for name, sizes in IMAGES.items()]
    rows = []
    for name, sizes, points in cases:
        factorised = sum(2 * (n_in + 1) * n_out for n_in, n_out in pairwise(sizes))  # a mean and a variance each
        forms: tuple[Options, ...] = ({}, {"n_pseudo": points}, {"n_pseudo": points, "zero_mean": True})
        counts = [n_parameters(sizes, **form) for form in forms]
        ratios = (f"{count:,} ({count / factorised:.2f})" for count in counts)
        rows.append((name, "-".join(map(str, sizes)), str(points), f"{factorised:,}", *ratios))
    return rows


# -- the page ---------------------------------------------------------------------------------------------------------

SCORES = {"rmse": "RMSE, lower is better", "log_likelihood": "Log-likelihood, higher is better"}
Differences = Mapping[tuple[str, str], tuple[float, float]]


def differences(lines: Sequence[Record], score: str) -> Differences:
    """Mean difference of each (variant, table) to :data:`BASE` over the splits that both have, and its error."""
    values = {(line["method"], line["dataset"], line["split"]): line[score] for line in lines if score in line}
    found = {}
    for name in ABLATIONS:
        for dataset in DATASETS:
            apart = [
                value - values[BASE, dataset, split]
                for (method, table, split), value in values.items()
                if (method, table) == (name, dataset) and (BASE, dataset, split) in values
            ]
            if apart:
                found[name, dataset] = mean_and_error(apart)
    return found


def render(lines: Sequence[Record]) -> str:
    """The tables of the page: each score of the paper's form, differences to it, and numbers of parameters."""
    parts = []
    for score, title in SCORES.items():
        found = differences(lines, score)
        rows = []
        for name, variant in ABLATIONS.items():
            cells = [_cell(lines, found, (name, dataset), score) for dataset in DATASETS]
            if any(cells):
                rows.append((name, variant.summary, *cells))
        parts += [f"## {title}", "", markdown(("variant", "change", *DATASETS), rows), ""]
    images = [
        (
            name,
            f"{line['error_percent']:.2f}",
            f"{line['log_likelihood']:.3f}",
            f"{line['training_log_likelihood']:.3f}",
        )
        for name in IMAGE_VARIANTS
        for line in lines
        if (line["dataset"], line["method"]) == (MNIST, name)
    ]
    if images:
        columns = ("variant", "error %", "log-likelihood", "on training batches")
        parts += ["## MNIST 3x150, five passes, one seed", "", markdown(columns, images), ""]
    header = ("", "network", "P", "factorised", "no pseudo-data", "pseudo-data", "zero mean")
    parts += ["## Parameters of the posterior, and their ratio to a factorised one", "", markdown(header, count_rows())]
    return "\n".join(parts)


def _cell(lines: Sequence[Record], found: Differences, case: tuple[str, str], score: str) -> str:
    """The paper's form as it is; another as its difference, bold where that is more than two standard errors."""
    if case not in found:
        return ""
    if case[0] == BASE:
        mean, error = mean_and_error([line[score] for line in lines if (line["method"], line["dataset"]) == case])
        return f"{mean:.3f} ± {error:.3f}"
    mean, error = found[case]
    text = f"{mean:+.3f} ± {error:.3f}"
    return f"**{text}**" if abs(mean) > 2 * error else text

"""Table 2 from a results file: ours beside the paper's."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from vmg_paper.experiments.digits import UNKNOWN
from vmg_paper.experiments.published import PAPER_TABLE2
from vmg_paper.experiments.results_file import Record
from vmg_paper.experiments.table2 import AVERAGES, MEAN
from vmg_paper.experiments.table2_methods import DIGIT_METHODS, n_weights
from vmg_paper.experiments.typeset import mean_and_error, typeset

__all__ = ["HEADER", "common_size", "foremost", "paper_error", "render", "summarise"]

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
    rate, the images and their pixels agree. A seed counts once: where the same number was given, and chosen among
    several, the line of the choice.
    """
    groups: dict[tuple[Any, ...], dict[int, Record]] = defaultdict(dict)
    for line in sorted((line for line in lines if line["experiment"] == "table2"), key=lambda line: len(line["tried"])):
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
    chosen = [one for member in members for one in member["tried"] if one["points"] == member["points"]]
    return next((one[VALIDATED] for one in chosen if VALIDATED in one), None)


def _mean_or_none(values: Sequence[float | None]) -> float | None:
    given = [value for value in values if value is not None]
    return float(np.mean(given)) if given else None


def render(summary: Sequence[Record], form: str) -> str:
    """The summary as a table; the paper's error is marked + where ours, rounded as it is, is no worse, else −."""
    return typeset(summary, HEADER, _cells, form, n_words=3)


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


def common_size(summary: Sequence[Record]) -> str:
    """The size at which most methods were run, among equals the smallest."""
    if not summary:
        raise ValueError("summary must hold at least one row; got none")
    methods: dict[str, set[str]] = defaultdict(set)
    for row in summary:
        methods[row["size"]].add(row["method"])
    return min(methods, key=lambda size: (-len(methods[size]), n_weights(size)))

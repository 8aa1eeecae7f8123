"""Scores of several methods on the same held-out rows, with a verdict that says no more than the rows can tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from vmg import metrics
from vmg.review.rivals import BASE_RATE
from vmg.tables.cells import listing, short
from vmg.tables.inputs import Task

__all__ = ["OWN", "SCORES", "Comparison", "RowScores", "join_scores", "score_classes", "score_numbers"]

Array = NDArray[np.float64]
OWN = "table"
SURE = 2.0  # standard errors of a difference that is not taken for chance
FASTER = 3.0  # times less processor time that speak for a method of equal quality
MIN_GROUP = 10  # rows of a group whose coverage is looked at
SCORES = {  # the name and the meaning of each score; JSON has the keys
    "rmse": ("RMSE", "root mean squared error, in the target's units"),
    "mae": ("MAE", "mean absolute error, in the target's units"),
    "r2": ("R2", "share of the target's variance explained"),
    "log_likelihood": ("log-likelihood", "mean log density, or probability, of the truth; higher is better"),
    "crps": ("CRPS", "continuous ranked probability score; lower is better"),
    "coverage": ("inside interval", "share of truths inside their {coverage:.0%} intervals"),
    "worst_group": ("worst group", "lowest share inside of a group"),
    "width": ("width", "mean width of the intervals"),
    "accuracy": ("accuracy", "share of rows whose likeliest class is right"),
    "brier": ("Brier score", "from 0 (best) to 2"),
    "ece": ("ECE", "expected calibration error of the likeliest class"),
}
MISSED = 0.05  # of a promised coverage: intervals that miss more are no equal of others


@dataclass(frozen=True)
class RowScores:
    """Scores of one method on each held-out row of one fold; JSON holds all of it, so that it can be kept."""

    fold: int
    method: str
    loss: list[float]  # squared errors, or log losses of classes
    log_prob: list[float]
    crps: list[float]  # Brier scores of classes
    hit: list[float]  # truths inside their intervals; right classes
    width: list[float]  # of the intervals; empty for classes
    seconds: float = 0.0  # of processor time, for fit and predictions
    version: str = ""  # of the method's package


def score_numbers(truth: Array, mean: Array, log_prob: Array, crps: Array, interval: Array) -> dict[str, list[float]]:
    """Scores of predicted numbers by row."""
    low, high = interval.T
    scores = {"loss": (mean - truth) ** 2, "log_prob": log_prob, "crps": crps, "width": high - low}
    scores["hit"] = ((truth >= low) & (truth <= high)).astype(float)
    return {name: values.tolist() for name, values in scores.items()}


def score_classes(p: Array, place: NDArray[np.int64]) -> dict[str, list[float]]:
    """Scores by row of predicted classes, given the place of the true one."""
    log_prob = metrics.label_log_prob(p, place)
    brier = (p**2).sum(1) - 2 * p[np.arange(len(p)), place] + 1
    scores = {"loss": -log_prob, "log_prob": log_prob, "crps": brier, "hit": (p.argmax(1) == place).astype(float)}
    return {name: values.tolist() for name, values in scores.items()} | {"width": []}


@dataclass(frozen=True)
class Comparison:
    """Scores of all methods on all held-out rows.

    Attributes
    ----------
    scores : dict of dict
        By method: ``rmse``, ``mae``, ``log_likelihood``, ``crps``, ``coverage`` and ``width`` of intervals for numbers,
        and the lowest coverage of a group, ``worst_group``, where groups are held out; ``accuracy``,
        ``log_likelihood`` and ``brier`` for classes.
    seconds, ranks : dict
        Processor time of all fits and predictions, and mean rank over folds by CRPS or Brier score.
    gains : dict
        What the CRPS or Brier score of each other method exceeds the default's by, as the ends of a 95 % interval.
        Above zero: the default is surely better. Rows of one group, and copies of a row, count as one observation.
    sentence, advice : str
        A verdict on the default's errors, and which method to choose.
    notes : tuple of str
        Methods that were left out, and why.
    held_out : str
        A few words about the rows that were held out.
    """

    task: Task
    n_rows: int
    scores: dict[str, dict[str, float]]
    seconds: dict[str, float]
    ranks: dict[str, float]
    gains: dict[str, tuple[float, float]]
    sentence: str
    advice: str = ""
    notes: tuple[str, ...] = ()
    held_out: str = ""

    def to_document(self) -> dict[str, Any]:
        """Return what a model file holds; times are left out, so that the same fit writes the same file."""
        return {"rows": self.n_rows, "scores": self.scores, "sentence": self.sentence}

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A row for each method, in the order of their ranks."""
        best_first = sorted(self.scores, key=self.ranks.__getitem__)
        return [
            {"method": name, **self.scores[name], "seconds": self.seconds[name], "rank": self.ranks[name]}
            for name in best_first
        ]

    def __str__(self) -> str:
        """The table in Markdown, and the verdict."""
        head = list(self.rows[0])
        cells = [[row["method"], *(f"{row[key]:.4g}" for key in head[1:])] for row in self.rows]
        lines = ["| " + " | ".join(line) + " |" for line in (head, ["---", *["---:"] * (len(head) - 1)], *cells)]
        return "\n".join([*lines, "", self.sentence, self.advice, *self.notes])


def join_scores(
    task: Task,
    parts: Sequence[RowScores],
    coverage: float = 0.9,
    groups: NDArray[np.int64] | None = None,
    *,
    by_group: bool = False,
) -> Comparison:
    """The scores of several folds as those of one.

    ``groups`` are of the held-out rows, fold after fold: rows of one are one observation, such as copies. With
    ``by_group`` they were held out whole, and the lowest coverage of one is a score.
    """
    methods, folds = list(dict.fromkeys(part.method for part in parts)), sorted({part.fold for part in parts})
    by_fold = {(part.method, part.fold): part for part in parts}
    values = {
        what: {name: np.concatenate([getattr(by_fold[name, fold], what) for fold in folds]) for name in methods}
        for what in ("loss", "log_prob", "crps", "hit", "width")
    }
    n_rows = len(values["loss"][methods[0]])
    groups = np.arange(n_rows) if groups is None else np.unique(groups, return_inverse=True)[1]
    scores = {}
    for name in methods:
        loss, log_prob, crps, hit, width = (float(of[name].mean()) if of[name].size else 0.0 for of in values.values())
        if task == "regression":
            mae = float(np.sqrt(values["loss"][name]).mean())
            row = {"rmse": loss**0.5, "mae": mae, "log_likelihood": log_prob, "crps": crps, "coverage": hit}
            row |= {"width": width} | (_worst_group(values["hit"][name], groups) if by_group else {})
        else:
            row = {"accuracy": hit, "log_likelihood": log_prob, "brier": crps}
        scores[name] = row
    means = np.array([[np.mean(by_fold[name, fold].crps) for name in methods] for fold in folds])
    ranks = dict(zip(methods, stats.rankdata(means, axis=1).mean(0).tolist(), strict=True))
    seconds = {name: sum(by_fold[name, fold].seconds for fold in folds) for name in methods}
    gains = {name: _interval(values["crps"][name] - values["crps"][OWN], groups) for name in methods if name != OWN}
    made = Comparison(task, n_rows, scores, seconds, ranks, gains, _sentence(task, values["loss"], groups))
    return replace(made, advice=_advice(made, coverage))


def _worst_group(hit: Array, groups: NDArray[np.int64]) -> dict[str, float]:
    """The lowest coverage of a group with at least ten rows; nothing where rows are not in groups."""
    size = np.bincount(groups)
    covered = np.bincount(groups, hit)[size >= MIN_GROUP] / size[size >= MIN_GROUP]
    return {"worst_group": float(covered.min())} if covered.size > 1 else {}


def _interval(gain: Array, groups: NDArray[np.int64]) -> tuple[float, float]:
    """The mean of a paired difference, less and more two standard errors; groups are the independent observations."""
    mean, n_groups = float(gain.mean()), int(groups.max()) + 1
    if n_groups < 2:
        return -np.inf, np.inf
    sums = np.bincount(groups, gain - mean)
    error = float(np.sqrt(n_groups / (n_groups - 1) * (sums**2).sum())) / len(gain)
    return mean - SURE * error, mean + SURE * error


def _sign(interval: tuple[float, float]) -> int:
    """1 where the default is surely better than another, -1 where it is surely worse."""
    return int(interval[0] > 0) - int(interval[1] < 0)


def _sentence(task: Task, losses: dict[str, Array], groups: NDArray[np.int64]) -> str:
    """A verdict on the default's errors against the others'."""
    what = "error" if task == "regression" else "log loss"
    n = len(losses[OWN])
    size = {name: float(loss.mean()) ** (0.5 if task == "regression" else 1) for name, loss in losses.items()}
    surely = {name: _sign(_interval(loss - losses[OWN], groups)) for name, loss in losses.items() if name != OWN}
    best = min(surely, key=size.__getitem__)
    if surely[BASE_RATE] < 1:
        return f"On these {n:,} rows {OWN} is not surely better than the base rate: do not rely on it."
    start = f"The {what} of {OWN} is {1 - size[OWN] / size[BASE_RATE]:.0%} below the base rate's"
    if len(surely) == 1:
        return f"{start}; no other method was compared."
    if best == BASE_RATE or surely[best] == 1:
        return f"{start}, and no other method here comes near."
    if surely[best] == -1:
        return f"{start}, but {best} is better on these {n:,} rows ({short(size[best])} against {short(size[OWN])})."
    both = f"({short(size[best])}, {OWN} {short(size[OWN])})"
    return f"{start}; against {best} {both} {n:,} rows cannot tell which is better."


def _advice(made: Comparison, coverage: float) -> str:
    """Which method to choose by the quality of whole distributions, and by time where quality is equal."""
    key, what = ("crps", "CRPS") if made.task == "regression" else ("brier", "Brier score")
    size = {name: row[key] for name, row in made.scores.items()}
    signs = {name: _sign(gain) for name, gain in made.gains.items()}
    better = [name for name, sign in signs.items() if sign == -1]
    if better:
        best = min(better, key=size.__getitem__)
        share = 1 - size[best] / size[OWN]
        return f"Choose {best}: its {what} is {share:.0%} below that of {OWN}, more than chance explains."
    equal = [name for name, sign in signs.items() if sign == 0]
    if not equal:
        return f"Choose {OWN}: its {what} is the best here, by more than chance explains."
    quick = [
        name
        for name in equal
        if made.seconds[OWN] > FASTER * made.seconds[name]
        and made.scores[name].get("coverage", coverage) > coverage - MISSED
    ]
    if quick:
        best = min(quick, key=size.__getitem__)
        times = made.seconds[OWN] / max(made.seconds[best], 1e-3)
        same = f"by {what} these rows cannot tell it from {OWN}"
        return f"Choose {best} if time counts: {same}, and it is {times:.0f} times faster."
    same = f"these rows cannot tell it from {listing(equal)}"
    return f"Keep {OWN}: by {what} no method is surely better; {same}."

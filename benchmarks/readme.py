"""The results in the README, from the result files.

    python benchmarks/readme.py            # write them between the markers
    python benchmarks/readme.py --check    # exit 1 if the README says anything else

A test runs the check, so that no figure of the README can go out of date.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from documents import fill, markdown

ROOT = Path(__file__).parents[1]
Record = dict[str, Any]


def read(name: str) -> list[Record]:
    return [json.loads(line) for line in (ROOT / "results" / name).read_text(encoding="utf-8").splitlines()]


def by_table(records: Sequence[Record], method: str, score: str) -> dict[str, float]:
    """The mean score of a method on each table."""
    own = [r for r in records if r["method"] == method and score in r]
    return {table: fmean(r[score] for r in own if r["table"] == table) for table in {r["table"] for r in own}}


def compare(records: Sequence[Record], other: str, score: str, *, ratio: bool) -> tuple[float, int, int]:
    """Ours against another's over their common tables: the mean ratio or difference, tables won, tables."""
    ours, theirs = by_table(records, "table", score), by_table(records, other, score)
    tables = sorted(ours.keys() & theirs.keys())
    if ratio:
        logs = [math.log(ours[t] / theirs[t]) for t in tables]
        return math.exp(fmean(logs)), sum(value < 0 for value in logs), len(tables)
    gains = [ours[t] - theirs[t] for t in tables]
    return fmean(gains), sum(value > 0 for value in gains), len(tables)


def regression(records: Sequence[Record]) -> str:
    """Tables that chose nothing: ours against a Gaussian process and boosted trees."""
    inside = [r for r in records if r["part"] == "inside"]
    others = [name for name in ("GP", "LightGBM") if any(r["method"] == name for r in inside)]
    rows = [["its RMSE, ours as a share of it (tables won)"], ["log score, ours less its (tables won)"]]
    for other in others:
        value, won, of = compare(inside, other, "rmse", ratio=True)
        rows[0].append(f"{value:.2f} ({won} of {of})")
        value, won, of = compare(inside, other, "log_likelihood", ratio=False)
        rows[1].append(f"{value:+.2f} ({won} of {of})")
    coverage = ["its coverage of 90 %: inside the data, in gaps, in tails"]
    parts = ("inside", "gap", "tail")

    def covered(method: str) -> str:
        means = [[r["coverage_90"] for r in records if r["method"] == method and r["part"] == part] for part in parts]
        return ", ".join(f"{fmean(found):.2f}" for found in means if found)

    rows.append([*coverage, *map(covered, others)])
    table = markdown(["", *({"GP": "Gaussian process"}.get(name, name) for name in others)], rows)
    return f"{table}\n\nOur own coverage: {covered('table')}."


def classification(records: Sequence[Record]) -> str:
    """Twelve development tables."""
    own = [r for r in records if r["experiment"] == "classes"]
    names = {"table": "`TableClassifier`", "CatBoost": "CatBoost", "deep ensemble": "deep ensemble"}
    names |= {"gradient boosting": "gradient boosting"}
    shown = [name for name in names if any(r["method"] == name for r in own)]

    def mean(score: str) -> Callable[[str], str]:
        return lambda method: f"{fmean(by_table(own, method, score).values()):.3f}"

    scores = {"mean log loss": "log_loss", "accuracy": "accuracy"}
    rows = [[label, *map(mean(score), shown)] for label, score in scores.items()]
    return markdown(["", *(names[name] for name in shown)], rows)


def results() -> str:
    kept_back, classes = read("kept_back.jsonl"), read("classes.jsonl")
    n_tables = len({r["table"] for r in kept_back})
    return "\n".join(
        [
            f"Regression on {n_tables} tables that chose nothing, defaults, two folds each",
            "(`python benchmarks/kept_back.py`):",
            "",
            regression(kept_back),
            "",
            "Classification, twelve development tables, one fold of four each (`python benchmarks/classes.py`).",
            "Some settings of ours were tried on other cuts of the same rows; the others have their defaults:",
            "",
            classification(classes),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--page", type=Path, default=ROOT / "README.md")
    a = parser.parse_args()
    before = a.page.read_text(encoding="utf-8")
    fill(a.page, "results", results())
    if a.check and before != a.page.read_text(encoding="utf-8"):
        a.page.write_text(before, encoding="utf-8")
        sys.exit(f"{a.page.name} does not say what the result files say; run: python benchmarks/readme.py")


if __name__ == "__main__":
    main()

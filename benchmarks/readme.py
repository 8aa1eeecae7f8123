"""The results in the README and the list of claims, docs/claims.md, from the result files.

    python benchmarks/readme.py            # write both

``tests/claims.py`` compares the pages with what is written here, so that no figure can go out of date.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from vmg.files import read_lines
from vmg_paper.experiments import table1, table2
from vmg_paper.experiments.published import PAPER_TABLE1
from vmg_paper.experiments.results_file import fill, markdown

ROOT = Path(__file__).parents[1]
Record = dict[str, Any]


def read(name: str) -> list[Record]:
    return read_lines(ROOT / "results" / name)


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
    rows = [
        ["RMSE, ours over its (tables where ours is smaller)"],
        ["log-likelihood, ours less its (tables where ours is better)"],
    ]
    for other in others:
        value, won, of = compare(inside, other, "rmse", ratio=True)
        rows[0].append(f"{value:.2f} ({won} of {of})")
        value, won, of = compare(inside, other, "log_likelihood", ratio=False)
        rows[1].append(f"{value:+.2f} ({won} of {of})")
    coverage = ["its coverage of 90 %: like the data, in gaps, in tails"]
    parts = ("inside", "gap", "tail")

    def covered(method: str) -> str:
        means = [[r["coverage_90"] for r in records if r["method"] == method and r["part"] == part] for part in parts]
        return ", ".join(f"{fmean(found):.2f}" for found in means if found)

    rows.append([*coverage, *map(covered, others)])
    table = markdown(["against", *({"GP": "a Gaussian process"}.get(name, name) for name in others)], rows)
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


# -- claims -----------------------------------------------------------------------------------------------------------


class Claim(NamedTuple):
    """What a page says, its figure, and the command that measures it."""

    page: str
    words: str  # as they stand in the page, unless the page shows a table
    figure: str
    command: str


def claims() -> list[Claim]:
    """Every claim of quality and speed on the front pages."""
    return [*claims_of_quality(), *claims_of_the_paper(), *claims_of_speed()]


def claims_of_quality() -> list[Claim]:
    kept_back, classes = read("kept_back.jsonl"), read("classes.jsonl")
    inside = [r for r in kept_back if r["part"] == "inside"]
    found = []
    for other in ("GP", "LightGBM"):
        ratio, won, of = compare(inside, other, "rmse", ratio=True)
        gain, better, _ = compare(inside, other, "log_likelihood", ratio=False)
        figure = f"RMSE {ratio:.2f} of its, smaller on {won} of {of} tables; "
        figure += f"log-likelihood {gain:+.2f}, better on {better}"
        found.append(Claim("README.md", f"`TableRegressor` against {other}", figure, "python benchmarks/kept_back.py"))
    coverage = [
        fmean(r["coverage_90"] for r in kept_back if r["method"] == "table" and r["part"] == part)
        for part in ("inside", "gap", "tail")
    ]
    words = "coverage of 90 % inside the data, in gaps and in tails"
    figure = ", ".join(f"{value:.2f}" for value in coverage)
    found.append(Claim("README.md", words, figure, "python benchmarks/kept_back.py"))
    own = [r for r in classes if r["experiment"] == "classes"]
    losses = {m: fmean(by_table(own, m, "log_loss").values()) for m in ("table", "CatBoost")}
    figure = f"{losses['table']:.3f}, CatBoost {losses['CatBoost']:.3f}"
    return [*found, Claim("README.md", "mean log loss of `TableClassifier`", figure, "python benchmarks/classes.py")]


def claims_of_the_paper() -> list[Claim]:
    rows = {(r["dataset"], r["method"]): r for r in table1.summarise(read("table1.jsonl"))}
    as_good = {"vmg": 0, "table": 0}
    for method in as_good:
        for dataset, (rmse, density) in PAPER_TABLE1.items():
            row = rows[dataset, method]
            as_good[method] += round(row["rmse"] - rmse.error, 2) <= rmse.mean
            as_good[method] += round(row["log_likelihood"] + density.error, 2) >= density.mean
    of = 2 * len(PAPER_TABLE1)
    words = {"vmg": "the paper's model on the paper's tables", "table": "the default on the paper's tables"}
    found = [
        Claim(
            "docs/table1.md",
            words[method],
            f"{count} of {of} figures within a standard error of the paper's, or better",
            f"vmg reproduce table1 --methods {method}",
        )
        for method, count in as_good.items()
    ]
    for size in ("3x150", "3x750"):
        (row,) = [
            r
            for r in table2.summarise(read("table2.jsonl"))
            if (r["method"], r["size"], r["points"], r["raw"], r["refit"]) == ("vmg", size, 150, True, False)
            and r["prediction"] == "mean network"
        ][:1]
        figure = (
            f"{row['error_percent']:.2f} % ({row['seeds']} seed{'s' * (row['seeds'] > 1)}), paper {row['paper']:.2f} %"
        )
        command = f"vmg reproduce table2 --raw --sizes {size} --points 150"
        found.append(Claim("docs/table2.md", f"MNIST, {size}, 50,000 images, raw pixels", figure, command))
    return found


def claims_of_speed() -> list[Claim]:
    predict = "python benchmarks/predict.py"
    many, one = measured("table, intervals of 10,000 rows"), measured("table, intervals of one row")
    update, step = measured("table, partial_fit of ten rows"), measured("784-750-750-750-10", "P=50")
    replicas = [
        r["ratio"]
        for r in read("own_loop_quality.jsonl")
        if r["part"] == "step" and r["method"] == "two replicas, each row by one"
    ]
    large = next(r for r in read("large_data.jsonl") if r["kind"] == "fit" and r["rows"] == 10_000_000)
    fleet = next(r for r in read("fleets.jsonl") if r["way"] == "fleet, pooled" and r["groups"] == 1000)
    times = 1 / float(many[4].rstrip("×"))
    return [
        Claim(
            "README.md", f"gradient boosting predicts a row about {times:.0f} times faster", f"{times:.1f}×", predict
        ),
        Claim(
            "docs/limits.md",
            f"Gradient boosting predicts a row about {times:.0f} times faster",
            f"{times:.1f}×",
            predict,
        ),
        Claim("docs/how_to/ship.md", f"one row takes about {float(one[1]):.0f} ms", f"{float(one[1]):.1f} ms", predict),
        Claim(
            "README.md",
            "conditions on new rows in a fraction of a second",
            f"{float(update[1]):.1f} ms for ten rows",
            predict,
        ),
        Claim("README.md", "seconds; nothing to tune", f"{float(update[3]) / 1e3:.1f} s for 1,000 rows", predict),
        Claim(
            "README.md",
            "trains two networks in about the time of one",
            " and ".join(f"{ratio:.2f}×" for ratio in replicas) + " the time of a step",
            "python benchmarks/own_loop_quality.py --times",
        ),
        Claim(
            "benchmarks/RESULTS.md", "step at 3×750, P=50, over a plain network's", step[4], "python benchmarks/step.py"
        ),
        Claim(
            "docs/scaling.md",
            "fit of ten million rows",
            f"{large['seconds']:.0f} s, {large['peak_mb']:.0f} MB",
            "python benchmarks/large_data.py",
        ),
        Claim(
            "docs/scaling.md",
            "a thousand groups as one fleet, over one fit after another",
            f"{fleet['times_less_work']:.0f} times less work",
            "python benchmarks/fleets.py",
        ),
    ]


def measured(*first: str) -> list[str]:
    """The cells of the row of benchmarks/RESULTS.md that begins so."""
    page = (ROOT / "benchmarks" / "RESULTS.md").read_text(encoding="utf-8")
    row = next(line for line in page.splitlines() if line.startswith(f"| {' | '.join(first)} |"))
    return row.strip("| ").split(" | ")


CLAIMS = """# Claims

Each claim of quality and speed on the front pages, with its figure and the command that measures it.
`python benchmarks/readme.py` writes this page from `results/` and `benchmarks/RESULTS.md`. `make test` fails if a page
says anything else, names a file, command, option or function that does not exist, or states a number that no table of
its page has.

"""


def pages() -> dict[Path, str]:
    """What pages must hold."""
    rows = [[c.words, c.figure, f"`{c.command}`", f"`{c.page}`"] for c in claims()]
    listed = CLAIMS + markdown(["claim", "figure", "command", "page"], rows)
    return {ROOT / "README.md": results(), ROOT / "docs" / "claims.md": listed}


if __name__ == "__main__":
    block, listed = pages().values()
    fill(ROOT / "README.md", "results", block)
    (ROOT / "docs" / "claims.md").write_text(f"{listed}\n", encoding="utf-8")

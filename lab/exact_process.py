"""Should the Gaussian process beside the networks know all rows, and learn its lengths from more of them?

Both ways are fitted to three quarters of the *training* rows of the tables of `benchmarks/study.py` that have at least
420, and scored on the other quarter: 300 centres and hyper-parameters from 300 rows, or the present form. Errors and
CRPS are in standard deviations of the scored targets.

    python lab/exact_process.py [--out lab/results/exact_process.jsonl]

A line for each table; what is in the file is not computed again. Needs the data folder in VMG_DATA.
"""

from __future__ import annotations

import argparse
import warnings
from dataclasses import replace
from pathlib import Path
from unittest import mock

import benchmarks_path  # noqa: F401
import numpy as np
import study
from threadpoolctl import threadpool_limits

from vmg.files import append_lines, read_lines
from vmg.fit import gaussian_process

FEWEST = 420
WAYS = {"300 rows": {"EXACT_ROWS": 0, "SEARCHED_ROWS": 300}, "present": {"EXACT_ROWS": 1000, "SEARCHED_ROWS": 600}}
SCORES = ("rmse", "crps", "log_likelihood", "coverage", "seconds")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "exact_process.jsonl")
    out = parser.parse_args().out
    warnings.simplefilter("ignore")
    done = {line["table"] for line in read_lines(out)}
    for task in study.tasks(every=1):
        if task.split != "random" or task.task == "classification" or task.table in done:
            continue
        plan = task.plan()
        ((fitted, _),) = plan.splits
        if plan.task == "classification" or len(fitted) < FEWEST:
            continue
        order, n = np.random.default_rng(1).permutation(fitted), 3 * len(fitted) // 4
        inner = replace(plan, splits=[(np.sort(order[:n]), np.sort(order[n:]))])
        line: dict[str, object] = {"table": task.table, "rows": n}
        for name, settings in WAYS.items():
            with threadpool_limits(1), mock.patch.multiple(gaussian_process, **settings):
                scores = study.measure(task, inner, study.OWN)
            line[name] = {score: scores[score] for score in SCORES}
        append_lines(out, [line])
        print(line, flush=True)


if __name__ == "__main__":
    main()

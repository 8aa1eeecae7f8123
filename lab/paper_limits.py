"""Which of the paper's two limits on α, 0.005 or 0.05, its recipe takes on each table; no test row is read.

The paper names both and does not say where each was used. The rows of a table's first standard training part are split
again, three times 90 to 10, and `vmg` trains on them for as many steps as in Table 1. One JSON line per (table,
limit) is appended to the results file, and what is there already is not run again. Scores are in the target's units.

    python lab/paper_limits.py --tables wine,boston
"""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from defaults import training_rows
from sklearn.model_selection import ShuffleSplit
from training_length import ALL_ROWS

from vmg.metrics import interval_coverage, rmse
from vmg_paper.baselines.splits import fit_splits
from vmg_paper.data import TABLES
from vmg_paper.experiments.results_file import Record, measure_missing
from vmg_paper.experiments.table1_methods import PAPER_LIMITS, TABLE_METHODS


def validate(table: str, limit: float, n_splits: int) -> Record:
    X, y = training_rows(table, ALL_ROWS)
    splits = list(ShuffleSplit(n_splits, test_size=0.1, random_state=5).split(X))
    recipe = TABLE_METHODS["vmg"].make(table, 0)
    longer = (len(X) // recipe.batch_size) / (len(splits[0][0]) // recipe.batch_size)  # epochs for the same steps
    recipe.set_params(
        baseline=replace(recipe.baseline, max_noise=math.sqrt(limit)), max_iter=round(recipe.max_iter * longer)
    )
    started = time.perf_counter()
    fitted = fit_splits(recipe, X, y, splits)
    seconds = time.perf_counter() - started
    scores = []
    for model, (_, held_out) in zip(fitted, splits, strict=True):
        predicted, true = model.pred_dist(X[held_out]), y[held_out]
        coverage = interval_coverage(true, predicted.interval(0.9))
        scores.append([rmse(true, predicted.mean), float(predicted.log_prob(true).mean()), coverage])
    means = dict(zip(("rmse", "log_likelihood", "coverage_90"), np.mean(scores, 0).tolist(), strict=True))
    return {"steps": fitted[0].n_steps_, **means, "seconds": round(seconds, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("lab/results/paper_limits.jsonl"))
    parser.add_argument("--tables", default=",".join(TABLES[:-1]))
    parser.add_argument("--splits", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    settings = [
        {"table": table, "limit": limit, "splits": options.splits}
        for table in options.tables.split(",")
        for limit in PAPER_LIMITS
    ]
    measure_missing(((one, partial(validate, *one.values())) for one in settings), options.out)


if __name__ == "__main__":
    main()

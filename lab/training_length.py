"""Choose how long the regressor trains, by whole default fits on held-out training rows; no test row is read.

For each table the rows of its first standard training part are split again, 90 to 10. The limit on √α is chosen inside
each training part, as it is for users, and all splits and members train as one batched network. One JSON line per
(table, steps, settings) is appended to the results file, and what is there already is not run again. Scores are in
units of the target's standard deviation.

    python lab/training_length.py --tables concrete,boston --steps 12000,30000
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from defaults import Rows, training_rows
from sklearn.model_selection import ShuffleSplit

from vmg.metrics import interval_coverage, rmse
from vmg.variational.fitter import LONG, Fitter, GaussianNoise, Method, matrix_gaussian_networks, search_noise
from vmg_paper.experiments.results_file import Record, measure_missing
from vmg_paper.experiments.table1_methods import hidden_layers

ALL_ROWS = 2**31


def validate(settings: dict[str, Any]) -> Record:
    """Scores of one table with so many steps, mean over splits and each split's."""
    X, y = training_rows(settings["table"], ALL_ROWS)
    splits = list(ShuffleSplit(settings["splits"], test_size=0.1, random_state=3).split(X))
    tables = [Rows.of(X[train], y[train]) for train, _ in splits]
    networks = matrix_gaussian_networks(hidden_layers(settings["table"]), n_pseudo=20)
    fitter = Fitter(
        Method(networks, GaussianNoise(by_input=True), search_noise),
        n_members=settings["members"],
        batch_size=settings["batch_size"] or None,
        budget=replace(LONG, fewest_steps=settings["steps"], most_steps=settings["steps"]),
    )
    started = time.perf_counter()
    fitted = fitter.fit([rows.encoded for rows in tables])
    assert fitted[0].history.last.step == settings["steps"]
    seconds = time.perf_counter() - started
    scores = []
    for one, rows, (_, held_out) in zip(fitted, tables, splits, strict=True):
        predicted, true = rows.predict(one, X[held_out]), y[held_out]
        log_likelihood = float(predicted.log_prob(true).mean() + np.log(y.std()))
        coverage = interval_coverage(true, predicted.interval(0.9))
        scores.append([rmse(true, predicted.mean) / y.std(), log_likelihood, coverage])
    names = ("rmse", "log_likelihood", "coverage_90")
    means = dict(zip(names, np.mean(scores, 0).tolist(), strict=True))
    return {**means, "each": np.round(scores, 4).tolist(), "seconds": round(seconds, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("lab/results/effort.jsonl"))
    parser.add_argument("--tables", default="boston,concrete,energy,wine,diabetes")
    parser.add_argument("--steps", default="12000,20000,30000")
    parser.add_argument("--batch-size", type=int, default=0, help="0: the estimator's own")
    parser.add_argument("--splits", type=int, default=6)
    parser.add_argument("--members", type=int, default=5)
    options = vars(parser.parse_args())
    out, tables, steps = (options.pop(key) for key in ("out", "tables", "steps"))
    torch.set_num_threads(1)
    settings = [
        {"table": table, "steps": number, **options}
        for table in tables.split(",")
        for number in map(int, steps.split(","))
    ]
    measure_missing(((one, partial(validate, one)) for one in settings), out)


if __name__ == "__main__":
    main()

"""Empirical coverage of 90 % intervals on the regression tables, defaults untouched, with and without conformalize.

Standard splits. "plain" fits all training rows; "conformal" fits 80 % of them and calibrates on the other 20 %. All
splits of a table train as one batched network. One JSON line per (table, kind, split) is appended; what is there
already is not run again.

    python lab/coverage.py --splits 5 --out lab/results/coverage.jsonl
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch

from vmg.files import append_lines, read_lines
from vmg.metrics import interval_coverage, interval_width, rmse
from vmg.variational import VMGRegressor
from vmg_paper.baselines.splits import fit_splits
from vmg_paper.data import TABLES, load_table, standard_splits
from vmg_paper.experiments.results_file import Record

CALIBRATION = 0.2  # of the training rows


def run(name: str, kind: str, numbers: list[int]) -> list[Record]:
    table = load_table(name)
    splits = [standard_splits(name)[k] for k in numbers]
    fit_rows, calibration_rows = [], []
    for k, (train, _) in zip(numbers, splits, strict=True):
        order = np.random.default_rng([0, k]).permutation(train)
        n_held = round(CALIBRATION * len(order)) if kind == "conformal" else 0
        calibration_rows.append(order[:n_held])
        fit_rows.append(order[n_held:])
    fitted = fit_splits(VMGRegressor(random_state=0), table.X, table.y, [(rows, None) for rows in fit_rows])
    earned = []
    for k, model, held, (_, test) in zip(numbers, fitted, calibration_rows, splits, strict=True):
        if kind == "conformal":
            model.conformalize(table.X[held], table.y[held])
        interval = model.predict_interval(table.X[test], 0.9)
        prediction = model.pred_dist(table.X[test])
        earned.append(
            {
                "table": name,
                "kind": kind,
                "split": k,
                "coverage_90": interval_coverage(table.y[test], interval),
                "width_90": interval_width(interval),
                "rmse": rmse(table.y[test], prediction.mean),
                "log_likelihood": float(prediction.log_prob(table.y[test]).mean()),
                "max_noise": model.max_noise_,
                "seconds": round(model.history_.last.seconds / len(splits), 2),
            }
        )
    return earned


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("lab/results/coverage.jsonl"))
    parser.add_argument("--tables", default=",".join(TABLES[:-1]))
    parser.add_argument("--splits", type=int, default=20)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    names = arguments.tables.split(",")
    for name in names:
        for kind in ("plain", "conformal"):
            done = {r["split"] for r in read_lines(arguments.out) if r["table"] == name and r["kind"] == kind}
            missing = [k for k in range(len(standard_splits(name)[: arguments.splits])) if k not in done]
            if missing:
                append_lines(arguments.out, run(name, kind, missing))
            rows = [r for r in read_lines(arguments.out) if r["table"] == name and r["kind"] == kind]
            mean = {
                key: round(float(np.mean([r[key] for r in rows])), 4)
                for key in ("coverage_90", "rmse", "log_likelihood")
            }
            print(json.dumps({"table": name, "kind": kind, "splits": len(rows), **mean}), flush=True)
    rows = [r for r in read_lines(arguments.out) if r["table"] in names]
    for kind in ("plain", "conformal"):
        by_table = [np.mean([r["coverage_90"] for r in rows if r["table"] == n and r["kind"] == kind]) for n in names]
        print(f"{kind}: coverage of the 90 % interval, averaged over {len(names)} tables: {np.mean(by_table):.4f}")


if __name__ == "__main__":
    main()

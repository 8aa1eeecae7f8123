"""A pooled fleet of groups against separate fits: wall time, and held-out log-likelihood, by the size of groups.

Groups have curves that differ by a spread; 1,000 of 50 to 500 rows, and 200 of 10 to 49. Some groups, evenly taken, are
fitted separately by the default estimator, in turns with the fleet's own timing on the same machine; their mean time
stands for all. Test rows, 200 a group, are drawn after the others.

    python benchmarks/fleets.py [--groups 1000] [--separate 40] [--spread 0.5] [--jobs 1] [--out results/fleets.jsonl]

With ``--jobs 2`` a fleet has two processes of one thread, and separate fits, one after the other, have two threads.
``times_faster`` compares seconds on the wall, ``times_less_work`` processor time, which is known with one job alone.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from vmg import TableRegressor
from vmg.files import append_lines
from vmg.metrics import interval_coverage, rmse
from vmg.scale import fit_fleet, load_fleet

TEST = 200


def make_group(number: int, n_rows: int, spread: float) -> pd.DataFrame:
    """Rows of one group: a curve whose level, slopes and noise are its own."""
    rng = np.random.default_rng(number)
    own = spread * rng.normal(size=5)
    x = rng.normal(size=(n_rows, 5))
    f = np.sin((2 + own[0]) * x[:, 0]) + (0.5 + 0.5 * own[1]) * x[:, 1] ** 2 + (1 + own[2]) * x[:, 2] + own[3]
    y = f + 0.3 * np.exp(0.5 * own[4]) * rng.normal(size=n_rows)
    return pd.DataFrame({**{f"x{k}": x[:, k] for k in range(5)}, "y": y, "group": f"g{number:05d}"})


def evaluate(model: object, frame: pd.DataFrame) -> tuple[float, float, float]:
    """Log-likelihood, RMSE and coverage of 90 % on the test rows of a group."""
    X, y = frame[[f"x{k}" for k in range(5)]].to_numpy(), frame["y"].to_numpy()
    prediction = model.pred_dist(X)  # type: ignore[attr-defined]
    coverage = interval_coverage(y, prediction.interval(0.9))
    return float(prediction.log_prob(y).mean()), rmse(y, prediction.mean), coverage


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--groups", type=int, default=1000)
    options.add_argument("--small", type=int, default=200, help="groups of 10 to 49 rows besides")
    options.add_argument("--separate", type=int, default=40, help="groups that are fitted separately, of each kind")
    options.add_argument("--spread", type=float, default=0.5)
    options.add_argument("--jobs", type=int, default=1)
    options.add_argument("--out", type=Path)
    asked = options.parse_args()
    torch.set_num_threads(asked.jobs)
    rng = np.random.default_rng(0)
    sizes = {"50 to 500": rng.integers(50, 501, asked.groups), "10 to 49": rng.integers(10, 50, asked.small)}
    number, kinds = 0, {}
    for kind, counts in sizes.items():
        kinds[kind] = [(number + k, n, make_group(number + k, n + TEST, asked.spread)) for k, n in enumerate(counts)]
        number += len(counts)
    for kind, groups in kinds.items():
        if not groups:
            continue
        rows: list = []
        train = pd.concat([frame[:n] for _, n, frame in groups], ignore_index=True)
        every = max(1, len(groups) // asked.separate)
        chosen = groups[::every]
        clock, found = Clock(), []
        for key, n, frame in chosen:
            X, y = frame[[f"x{k}" for k in range(5)]].to_numpy(), frame["y"].to_numpy()
            model = TableRegressor(random_state=key).fit(X[:n], y[:n])
            found.append((model, frame[n:]))
        separate = [spent / len(chosen) * len(groups) for spent in clock.read()]
        common = {"rows": kind, "spread": asked.spread, "jobs": asked.jobs}
        alone = {frame["group"].iloc[0]: evaluate(model, frame) for model, frame in found}
        record(rows, common, "separate", len(groups), separate, separate, list(alone.values()), list(alone.values()))
        with tempfile.TemporaryDirectory() as folder:
            clock = Clock()
            everything = train if kind == "50 to 500" else pd.concat(
                [train, *(frame[:n] for _, n, frame in kinds["50 to 500"])], ignore_index=True
            )  # fmt: skip
            fit_fleet(everything, "y", "group", Path(folder) / "f", pool=True, n_jobs=asked.jobs)
            seconds = clock.read()
            fleet = load_fleet(Path(folder) / "f")
            score = [evaluate(_Group(fleet, frame), frame[n:]) for _, n, frame in chosen]
        record(rows, common, "fleet, pooled", len(groups), seconds, separate, score, list(alone.values()))
        if asked.out:
            append_lines(asked.out, rows)
        print(*rows, sep="\n", flush=True)


class Clock:
    """Seconds on the wall and of this process's work: a busy machine stretches the first alone."""

    def __init__(self) -> None:
        self.started = time.perf_counter(), time.process_time()

    def read(self) -> list[float]:
        return [time.perf_counter() - self.started[0], time.process_time() - self.started[1]]


class _Group:
    """The estimator of a group in a fleet, as one that takes an array."""

    def __init__(self, fleet: object, frame: pd.DataFrame) -> None:
        self.model = fleet.model(frame["group"].iloc[0])  # type: ignore[attr-defined]

    def pred_dist(self, X: np.ndarray) -> object:
        return self.model.pred_dist(pd.DataFrame(X, columns=[f"x{k}" for k in range(5)]))


def record(rows: list, common: dict, way: str, n: int, seconds: list, separate: list, score: list, alone: list) -> None:
    """A line of times and scores; ``alone`` has the scores of the same groups fitted separately."""
    values, before = np.array(score), np.array(alone)
    means = dict(zip(("log_likelihood", "rmse", "coverage_90"), values.mean(0).round(4).tolist(), strict=True))
    gain = values[:, 0] - before[:, 0]
    row = {**common, "way": way, "groups": n, "scored": len(values), "seconds": round(seconds[0], 1)}
    row["times_faster"] = round(separate[0] / seconds[0], 1)
    if common["jobs"] == 1:
        row |= {"work_seconds": round(seconds[1], 1), "times_less_work": round(separate[1] / seconds[1], 1)}
    row |= {**means, "log_likelihood_se": standard_error(values[:, 0])}
    rows.append({**row, "gain": round(float(gain.mean()), 4), "gain_se": standard_error(gain)})


def standard_error(values: np.ndarray) -> float:
    return round(float(values.std() / np.sqrt(max(1, len(values) - 1))), 4)


if __name__ == "__main__":
    main()

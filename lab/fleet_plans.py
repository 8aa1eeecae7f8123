"""How large a group's model in a fleet is, and how long it trains: compared on held-out training rows.

Groups are cut at random from the training rows of the first fold of ten tables, twelve of 50 to 500 rows from each, and
36 are generated as in ``fleets.py``, with seeds that it never uses. They are scored on up to 300 other training rows
each; no test row is read. Log-likelihoods are in units of the group's own standard deviation. Gains are those over the
first plan, group by group, and one group counts for at most two nats.

    python lab/fleet_plans.py [--out lab/results/fleet_plans.jsonl] [--separate]

``--separate`` fits each group by the default estimator too. Needs the data folder in VMG_DATA.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import benchmarks_path  # noqa: F401
import numpy as np
import regression_tables
import torch
from fleets import make_group
from numpy.typing import NDArray

from vmg import TableRegressor
from vmg.fit.design import Size, TrainingPlan
from vmg.scale import group_fits
from vmg.scale.group_fits import GroupTable, fit_together

Array = NDArray[np.float64]
Group = tuple[Array, Array]  # training and scored rows, the target last

SCORED = 300
FIRST_SEED = 10_000_000
PLANS = (  # hidden units, members, rate, patience, refit steps
    (30, 6, 0.03, 40, 40),  # as it was once
    (30, 6, 0.03, 30, 20),
    (30, 6, 0.05, 30, 20),
    (30, 6, 0.05, 20, 20),
    (30, 6, 0.08, 20, 10),
    (30, 6, 0.1, 20, 10),
    (30, 8, 0.08, 20, 10),
    (40, 6, 0.06, 20, 10),
    (40, 6, 0.08, 20, 10),
    (40, 6, 0.1, 20, 10),
    (50, 6, 0.08, 20, 10),
)


def groups() -> dict[str, list[Group]]:
    """The groups of each table, by size."""
    rng = np.random.default_rng(77)
    found: dict[str, list[Group]] = {}
    for name in regression_tables.OTHERS:
        X, y = regression_tables.load(name)
        rows = np.column_stack([X, y])[regression_tables.splits(name, 1)[0][0]]
        found[name] = []
        for _ in range(12):
            mixed = rng.permutation(len(rows))
            n = int(rng.integers(50, min(501, len(rows) - 100)))
            found[name].append((rows[mixed[:n]], rows[mixed[n : n + SCORED]]))
    found["generated"] = []
    for k in range(36):
        n = int(rng.integers(50, 501))
        frame = make_group(FIRST_SEED + k, n + SCORED, 0.5)
        rows = frame[[*(f"x{column}" for column in range(5)), "y"]].to_numpy()
        found["generated"].append((rows[:n], rows[n:]))
    return {name: sorted(some, key=lambda group: len(group[0])) for name, some in found.items()}


def fit_fleet(some: Sequence[Group]) -> list[TableRegressor]:
    """Models of groups in two batches of about the same size."""
    half = len(some) // 2
    tables = [GroupTable(k, rows[:, :-1], rows[:, -1], seed=5) for k, (rows, _) in enumerate(some)]
    return [*fit_together(tables[:half]), *fit_together(tables[half:])]


def fit_separately(some: Sequence[Group]) -> list[TableRegressor]:
    return [TableRegressor(random_state=k).fit(rows[:, :-1], rows[:, -1]) for k, (rows, _) in enumerate(some)]


def measure(fit: Callable[[Sequence[Group]], list[TableRegressor]], tables: dict[str, list[Group]]) -> dict[str, Any]:
    """Log-likelihoods of each group, and the work."""
    started, found, steps = time.process_time(), {}, []
    for name, some in tables.items():
        models = fit(some)
        found[name] = [
            float(model.pred_dist(rows[:, :-1]).log_prob(rows[:, -1]).mean() + np.log(seen[:, -1].std()))
            for model, (seen, rows) in zip(models, some, strict=True)
        ]
        steps += [model.history_.last.step for model in models]
    return {"work_seconds": time.process_time() - started, "steps": float(np.mean(steps)), "log_likelihoods": found}


def gains(found: dict[str, list[float]], first: dict[str, list[float]]) -> dict[str, float]:
    """Mean gain over the first plan and its standard error, on groups of tables and on generated ones."""
    told = {}
    for kind in ("tables", "generated"):
        names = [name for name in found if (name == "generated") == (kind == "generated")]
        gain = np.concatenate([np.clip(np.subtract(found[name], first[name]), -2, 2) for name in names])
        told[f"gain_{kind}"] = float(gain.mean().round(4))
        told[f"error_{kind}"] = float((gain.std() / np.sqrt(len(gain))).round(4))
    return told


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--out", type=Path)
    options.add_argument("--separate", action="store_true")
    asked = options.parse_args()
    torch.set_num_threads(1)
    tables, first = groups(), None
    for plan in [*PLANS, *([None] if asked.separate else [])]:
        named: dict[str, Any] = {"way": "separate"}
        if plan is not None:
            hidden, members, rate, patience, refit_steps = plan
            training = TrainingPlan(rate=rate, patience=patience, refit_steps=refit_steps)
            group_fits.FLEET_SIZE = Size((hidden,), ("relu", "tanh"), members, training)
            names = ("hidden", "members", "rate", "patience", "refit_steps")
            named = {"way": "fleet", **dict(zip(names, plan, strict=True))}
        found = measure(fit_separately if plan is None else fit_fleet, tables)
        likelihoods = found.pop("log_likelihoods")
        first = first or likelihoods
        row = {**named, **{name: round(value, 1) for name, value in found.items()}, **gains(likelihoods, first)}
        print(json.dumps(row), flush=True)
        if asked.out:
            with asked.out.open("a") as file:
                file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()

"""Predictions of several kinds of experts on training parts of development tables, kept for studies of stacking.

    VMG_DATA=../shared/data python lab/expert_bank.py --out /tmp/bank --rows 120 --seeds 2

Every expert predicts two sets of rows: the rows of its fit that it has not seen (the same folds and regions for all
experts), and rows of the same training part that no expert has seen. ``expert_stacks.py`` weighs the experts by the
first and scores the mixtures on the second. No test row of any table is read.
"""

from __future__ import annotations

import argparse
import pickle
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import benchmarks_path  # noqa: F401
import numpy as np
import torch
from hard_tables import REGRESSION, Table
from numpy.typing import NDArray
from regression_tables import ALL, load, splits
from scipy import stats

from vmg import TableRegressor
from vmg.fit.boosted_trees import BoostedTrees
from vmg.fit.calibration import Calibration
from vmg.fit.design import FitSettings, InputRange, Standardiser, choose_size, regions, squash
from vmg.fit.ensemble import Function
from vmg.fit.gaussian import RegressionEnsemble, RegressionMembers, held_out_functions
from vmg.fit.gaussian_process import GaussianProcess
from vmg.fit.stacking import pool
from vmg.fit.trainer import train_ensemble
from vmg.nn.anchored import AnchoredFunctions

Array = NDArray[np.float64]
Rows = tuple[Array, Array, Array, Array]  # inputs and targets to fit, inputs and targets to score
SCORED_ROWS = 1000
KEPT_BACK = {"Caschool", "Housing", "Computers", "Crime", "Clothing", "MCAS", "Cigar", "dietox", "spruce", "quakes"}
"""Tables of benchmarks/kept_back_tables.py, which must choose nothing."""


# -- tables -----------------------------------------------------------------------------------------------------------


def friedman(n: int, n_columns: int, seed: int) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    x = rng.random((n, n_columns))
    f = 10 * np.sin(np.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]
    return x, f + rng.standard_normal(n)


def tables(rows: int, seed: int, *, region: bool) -> Iterator[tuple[str, Callable[[], Rows]]]:
    """Names, and makers of the rows; skewed amounts are taken as logarithms."""

    def apart(X: Array, y: Array) -> Rows:
        rng = np.random.default_rng(5 + seed)
        x = squash(Standardiser.fit(X).transform(X))
        inside = regions(x, 2, 0.25, rng)[seed % 2]
        fit, scored = (rng.permutation(np.flatnonzero(part)) for part in (~inside, inside))
        return X[fit[:rows]], y[fit[:rows]], X[scored[:SCORED_ROWS]], y[scored[:SCORED_ROWS]]

    def parts(n: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        order = np.random.default_rng(5 + seed).permutation(n)
        n_fit = min(rows, round(0.7 * n))
        return order[:n_fit], order[n_fit : n_fit + SCORED_ROWS]

    def arrays(X: Array, y: Array) -> Rows:
        fit, scored = parts(len(y))
        if y.min() > 0 and stats.skew(y) > 1.5:
            y = np.log(y)
        if region:
            return apart(X, y)
        return X[fit], y[fit], X[scored], y[scored]

    def of_split(name: str) -> Rows:
        X, y = load(name)
        train = splits(name, 1)[0][0]
        return arrays(X[train], y[train])

    def raw(table: Table) -> Rows:
        train, _ = table.parts()
        y = train[table.target].to_numpy(float)
        inputs = train.drop(columns=table.target)
        fit, _ = parts(len(y))
        # words become numbers as in the default; one step of training, for the encoder alone is wanted
        model = TableRegressor(likelihood="student", max_iter=1, n_members=2, random_state=0)
        model.fit(inputs.iloc[fit], y[fit])
        X = inputs.to_numpy(float) if model.inputs_.plain else model.inputs_.read(inputs).features
        return arrays(X, y)

    for name in ALL:
        yield name, lambda name=name: of_split(name)
    for n_columns in (10, 35):
        yield f"friedman-{n_columns}", lambda n_columns=n_columns: arrays(*friedman(3000, n_columns, 1))
    for table in REGRESSION:
        if table.name not in KEPT_BACK:
            yield table.key, lambda table=table: raw(table)


# -- experts ----------------------------------------------------------------------------------------------------------


def bank(name: str, rows: Rows, seed: int, file: Path) -> None:
    X, y, X_new, y_new = rows
    scaling, units = Standardiser.fit(X), Standardiser.fit(y[:, None])
    x, far = scaling.transform(X), scaling.transform(X_new)
    x_new = squash(far)
    y, y_new = units.transform(y[:, None])[:, 0], units.transform(y_new[:, None])[:, 0]
    size = choose_size(len(x))
    kept: dict[str, object] = {"y_new": y_new, "x_new": x_new, "rows": len(x), "seconds": {}, "new": {}, "held": {}}
    started = time.process_time()

    def done(expert: str) -> None:
        nonlocal started
        kept["seconds"][expert] = time.process_time() - started
        started = time.process_time()

    trained = train_ensemble(RegressionMembers, x, y[:, None], None, FitSettings(size, seed))
    members, soft = trained.members, trained.rows.x
    members.update(soft, y[:, None], None)
    posterior = members.head.posterior()
    functions = AnchoredFunctions(members.features, posterior.mean, posterior.root)
    (folds,), (regions,) = held_out_functions(trained.held)
    member_noise = trained.held.said.parameters
    done("networks")
    factor = InputRange.of(soft).extrapolation_factor(x_new)
    means, relative = functions(x_new)
    own = relative.T @ member_noise[:, 0] / len(means) + means[..., 0].var(0, ddof=1)
    kept["new"]["networks"] = Function(means[..., 0].mean(0), own * factor)
    kept["held"]["networks"] = (folds, regions)
    parts = (member_noise, (Calibration(1.0, 1.0, 100.0),), (None,), np.inf)
    kept["drift"] = np.square(RegressionEnsemble(members, InputRange.of(soft), *parts)._drift(far)).sum((0, 2))
    kept |= {"x": soft, "noise": {"networks": float(member_noise.mean())}}
    kept["input_scale"] = members.features.input_scale().numpy().astype(np.float64)
    started = time.process_time()

    def keep(expert: str, fitted: tuple[object, list[Function]]) -> None:
        done(expert)
        model, said = fitted
        loc, variance = model.predict(x_new)
        kept["new"][expert], kept["noise"][expert] = Function(loc, variance * factor), model.noise
        kept["held"][expert] = tuple(
            pool(said, trained.held, like, regions=regions)
            for like, regions in zip(kept["held"]["networks"], (False, True), strict=True)
        )

    rows = replace(trained.rows, rng=np.random.default_rng(seed))
    keep("gp", GaussianProcess.fit(rows, trained.held.index))
    keep("trees", BoostedTrees.fit(rows, trained.held.index))
    file.write_bytes(pickle.dumps(kept))
    errors = {k: round(float(np.sqrt(np.mean((y_new - f.loc) ** 2))), 3) for k, f in kept["new"].items()}
    print(name, x.shape, seed, errors, {k: round(v, 2) for k, v in kept["seconds"].items()}, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tables", default="")
    parser.add_argument("--rows", type=int, default=500)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--region", action="store_true", help="Score rows of a gap or an end that no fit has seen.")
    options = parser.parse_args()
    options.out.mkdir(exist_ok=True, parents=True)
    torch.set_num_threads(1)
    asked = set(options.tables.split(",")) if options.tables else None
    for seed in range(options.seeds):
        for name, make in tables(options.rows, seed, region=options.region):
            file = options.out / f"{name.replace(':', '_')}.{options.rows}.{seed}.pkl"
            if (asked is None or name in asked) and not file.exists():
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    bank(name, make(), seed, file)


if __name__ == "__main__":
    main()

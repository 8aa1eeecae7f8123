"""The cost of missing cells, where training rows lack some too: marks that networks learn, draws, or both.

The column that tells most of the target loses cells: at random, or mostly (four of five) where the target is above its
median, as where "none" means much. Rates are 1 %, 5 % and 30 % of the training rows. Scored are rows that lack the cell
by the same mechanism, held out of the *training* rows of the first split of each table, at most 800. The cost is the
log-likelihood with the cell minus that without it, in nats a row, for several values of ``LEARNED_ROWS``: with almost 0
the mark alone tells, with 1e9 draws alone do. "median" fills the hole as if it were known. "absent" has no hole in
training, so draws are all there is.

    python lab/missing_cells.py [--out lab/results/missing_cells.jsonl] [--tables airfoil ...] [--show]

A line for each fit; what is in the file is not computed again. Needs the data folder in VMG_DATA.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import benchmarks_path  # noqa: F401
import numpy as np
import pandas as pd
import regression_tables
from numpy.typing import NDArray
from scipy.stats import spearmanr
from threadpoolctl import threadpool_limits

from vmg.estimators import TableModel
from vmg.tables import inputs
from vmg_paper.experiments.results_file import markdown, measure_missing

TABLES = ("airfoil", "autompg", "boston", "concrete", "energy", "kin8nm", "stock", "wine")
MECHANISMS = {"absent": (0.0,), "at random": (0.01, 0.05, 0.3), "by target": (0.01, 0.05, 0.3)}
LEARNED_ROWS = (1e-9, 10.0, 30.0, 100.0, 300.0, 1e9)
MOST_ROWS = 800
SCORED = 100
ABOVE = 0.8  # of the holes by target are in rows whose target is above the median


def holes(y: NDArray, mechanism: str, n: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """The rows that lack the cell."""
    share = ABOVE if mechanism == "by target" else 0.5
    weight = np.where(y > np.median(y), share, 1 - share)
    return rng.choice(len(y), min(n, len(y)), replace=False, p=weight / weight.sum())


def measure(name: str, mechanism: str, rate: float) -> dict[str, Any]:
    X, y = regression_tables.load(name)
    train = regression_tables.splits(name, 1)[0][0]
    rng = np.random.default_rng(0)
    train = rng.permutation(train)[:MOST_ROWS]
    cut = 3 * len(train) // 4
    strength = [abs(spearmanr(X[train, k], y[train])[0]) for k in range(X.shape[1])]
    column = f"x{np.argsort(np.nan_to_num(strength))[-1]}"
    frame = pd.DataFrame(X[train], columns=[f"x{k}" for k in range(X.shape[1])]).assign(target=y[train])
    inner, outer = frame[:cut].reset_index(drop=True), frame[cut:].reset_index(drop=True)
    median = float(inner[column].median())
    lost = holes(inner["target"].to_numpy(), mechanism, round(rate * len(inner)), rng)
    inner.loc[lost, column] = np.nan
    model = TableModel.fit(inner, "target", task="regression", options={"random_state": 0})
    scored = outer.iloc[holes(outer["target"].to_numpy(), mechanism, SCORED, rng)]
    truth, without = scored["target"].to_numpy(), scored.assign(**{column: np.nan})
    known = model.pred_dist(scored).log_prob(truth)
    cost = {"median": float(np.mean(known - model.pred_dist(scored.assign(**{column: median})).log_prob(truth)))}
    before = inputs.LEARNED_ROWS
    for rows in LEARNED_ROWS:
        inputs.LEARNED_ROWS = rows
        cost[f"{rows:g}"] = float(np.mean(known - model.pred_dist(without).log_prob(truth)))
    inputs.LEARNED_ROWS = before
    return {"n_lost": len(lost), "known": float(known.mean()), "cost": cost}


def cases(tables: list[str]) -> Iterator[tuple[dict[str, Any], Callable[[], dict[str, Any]]]]:
    """Keys of records, and what measures them."""
    for mechanism, rates in MECHANISMS.items():
        for rate in rates:
            for table in tables:
                yield {"table": table, "mechanism": mechanism, "rate": rate}, partial(measure, table, mechanism, rate)


def show(records: list[dict[str, Any]]) -> str:
    found = pd.DataFrame([{**r, **r["cost"]} for r in records])
    names = [f"{rows:g}" for rows in LEARNED_ROWS] + ["median"]
    mean = found.groupby(["mechanism", "rate"])[names].mean()
    rows = [[kind, f"{rate:.0%}", *(f"{v:.2f}" for v in values)] for (kind, rate), *values in mean.itertuples()]
    return markdown(["holes", "of training rows", *names], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("lab/results/missing_cells.jsonl"))
    parser.add_argument("--tables", nargs="+", default=list(TABLES))
    parser.add_argument("--show", action="store_true", help="print the table of what is there")
    options = parser.parse_args()
    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore")
        print(show(measure_missing([] if options.show else cases(options.tables), options.out)))


if __name__ == "__main__":
    main()

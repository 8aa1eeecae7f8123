"""Time of predictions: of tables, of many samples in one pass, and of the mean network alone.

Each row compares a way with the reference that it should beat, or match, and states its goal, if it has one. Tables
are Friedman's first function of 10 features, 1,000 training rows, default estimators. Times are the processor's.

    python benchmarks/predict.py [--json] [--rows 10000] [--samples 100] [--width 50] [--rounds 15]
"""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Callable

import torch
from measuring import Row, interleaved, parser, plain_network, show
from sklearn.datasets import make_friedman1
from sklearn.ensemble import HistGradientBoostingRegressor

from vmg import TableRegressor
from vmg.nn import MLP, to_plain
from vmg.prediction import draw_functions

INPUTS, OUTPUTS, N_PSEUDO = 13, 2, 10  # a table's regressor with input-dependent noise
COLUMNS = {
    "way": "{way}",
    "ms": "{ms:.2f}",
    "reference": "{reference}",
    "its ms": "{reference_ms:.2f}",
    "reference / way": "{times:.2f}×",
    "goal": "{goal}",
}


@torch.no_grad()
def measure(rows: int, samples: int, width: int, rounds: int, threads: int) -> list[Row]:
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="n_pseudo should be <")
        network = MLP(INPUTS, (width,), OUTPUTS, n_pseudo=N_PSEUDO, max_noise=0.2)
    x = torch.randn(rows, INPUTS)
    folded, plain = to_plain(network), plain_network([INPUTS, width, OUTPUTS])
    loop, one_pass = f"{samples} calls in a loop", f"{samples} samples in one pass"
    ways: dict[str, Callable[[], object]] = {
        loop: lambda: torch.stack([network(x) for _ in range(samples)]),
        one_pass: lambda: draw_functions(network, x, samples, seed=0),  # as estimators do, in chunks of rows
    }
    clock = time.process_time
    medians = interleaved(ways, rounds, warm_up=1, settle=True, clock=clock)
    mean_networks = {"folded mean network": lambda: folded(x), "plain nn": lambda: plain(x)}
    medians |= interleaved(mean_networks, 10 * rounds, clock=clock)
    medians |= of_tables(rows, rounds, members=2 if rows < 100 else "auto")
    of_rows = f"{rows:,} rows"
    asked = (
        (one_pass, loop, ">= 5"),
        ("folded mean network", "plain nn", ">= 1/1.05"),
        (f"table, intervals of {of_rows}", f"gradient boosting, means of {of_rows}", ""),
        ("table, intervals of one row", "gradient boosting, means of one row", ""),
        ("table, partial_fit of ten rows", "table, fit", ""),
    )
    results = []
    for way, reference, bar in asked:
        row: Row = {"way": way, "ms": medians[way], "reference": reference, "reference_ms": medians[reference]}
        row |= {"times": medians[reference] / medians[way], "goal": bar}
        results.append({**row, "rows": rows, "width": width, "threads": threads})
    return results


@torch.enable_grad()
def of_tables(rows: int, rounds: int, members: int | str) -> dict[str, float]:
    """Milliseconds of predictions of new rows, and of taking in ten of them."""
    X, y = make_friedman1(1_000 if rows >= 100 else 40, noise=1.0, random_state=0)
    X_new, y_new = make_friedman1(rows, noise=1.0, random_state=1)
    started = time.process_time()
    table = TableRegressor(n_members=members, random_state=0).fit(X, y)
    fit = 1e3 * (time.process_time() - started)
    trees, updated = HistGradientBoostingRegressor(random_state=0).fit(X, y), copy.deepcopy(table)
    ways: dict[str, Callable[[], object]] = {
        f"table, intervals of {rows:,} rows": lambda: table.predict_interval(X_new),
        f"gradient boosting, means of {rows:,} rows": lambda: trees.predict(X_new),
        "table, intervals of one row": lambda: table.predict_interval(X_new[:1]),
        "gradient boosting, means of one row": lambda: trees.predict(X_new[:1]),
        "table, partial_fit of ten rows": lambda: updated.partial_fit(X_new[:10], y_new[:10]),
    }
    return {"table, fit": fit, **interleaved(ways, rounds, warm_up=1, clock=time.process_time)}


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--rows", type=int, default=10_000)
    options.add_argument("--samples", type=int, default=100)
    options.add_argument("--width", type=int, default=50)
    options.add_argument("--rounds", type=int, default=15)
    a = options.parse_args()
    if a.quick:
        a.rows, a.samples, a.width, a.rounds = 50, 3, 4, 1
    show(measure(a.rows, a.samples, a.width, a.rounds, a.threads), COLUMNS, as_json=a.json)


if __name__ == "__main__":
    main()

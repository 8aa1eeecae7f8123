"""Time of predictions: many samples in one pass, and the mean network alone.

Each row compares a way with the reference that it should beat, or match, and states its goal.

    python benchmarks/predict.py [--json] [--rows 10000] [--samples 100] [--width 50] [--rounds 15]
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from measuring import Row, interleaved, parser, plain_network, show

from vmg.nn import MLP, to_plain
from vmg.prediction import sample_outputs

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
    folded, plain = to_plain(network, centre=False), plain_network([INPUTS, width, OUTPUTS])
    loop, one_pass = f"{samples} calls in a loop", f"{samples} samples in one pass"
    ways: dict[str, Callable[[], object]] = {
        loop: lambda: torch.stack([network(x) for _ in range(samples)]),
        one_pass: lambda: sample_outputs(network, x, samples),
    }
    medians = interleaved(ways, rounds, warm_up=1, settle=True)
    medians |= interleaved({"folded mean network": lambda: folded(x), "plain nn": lambda: plain(x)}, 10 * rounds)
    asked = (
        (one_pass, loop, ">= 5"),
        ("folded mean network", "plain nn", ">= 1/1.05"),
    )
    results = []
    for way, reference, bar in asked:
        row: Row = {"way": way, "ms": medians[way], "reference": reference, "reference_ms": medians[reference]}
        row |= {"times": medians[reference] / medians[way], "goal": bar}
        results.append({**row, "rows": rows, "width": width, "threads": threads})
    return results


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

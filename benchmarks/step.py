"""Time of one training step over that of a plain ``nn.Linear`` network of the same shape and the same Adam.

A step is the one of :func:`vmg.training.train`: it draws f, takes the bound with the categorical likelihood and its
gradient, and makes one step of Adam (fused, for both).
The two networks take turns, so that whatever else the machine does meets both; a ratio is one of medians.

    python benchmarks/step.py [--json] [--widths 150 400 750] [--rounds 100]
"""

from __future__ import annotations

import torch
from measuring import CLASSES, INPUTS, Row, bayesian_step, interleaved, minibatch, parser, plain_step, show

from vmg.fused import library

VARIANTS = {
    "P=50": {"n_pseudo": 50},
    "P=20": {"n_pseudo": 20},
    "zero mean, P=50": {"n_pseudo": 50, "zero_mean": True},
}
COLUMNS = {
    "layers": "{layers}",
    "network": "{variant}",
    "ms per step": "{ms:.2f}",
    "nn.Linear, ms": "{plain_ms:.2f}",
    "ratio": "{ratio:.2f}×",
    "goal": "{goal}",
}
ASKED = {  # at most; by width
    150: {"P=50": 3.0, "P=20": 2.2},
    400: {"P=50": 2.4, "P=20": 1.9, "zero mean, P=50": 1.5},
    750: {"P=50": 2.1, "P=20": 1.7, "zero mean, P=50": 1.0},
}


def measure(widths: list[int], rounds: int, threads: int) -> list[Row]:
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    x, y = minibatch()
    results: list[Row] = []
    for width in widths:
        steps = {name: bayesian_step(width, x, y, **options) for name, options in VARIANTS.items()}
        medians = interleaved({"nn.Linear": plain_step(width, x, y), **steps}, rounds)
        plain = medians.pop("nn.Linear")
        for name, milliseconds in medians.items():
            row: Row = {"layers": f"{INPUTS}-" + f"{width}-" * 3 + str(CLASSES), "width": width, "variant": name}
            row |= {"ms": milliseconds, "plain_ms": plain, "ratio": milliseconds / plain}
            bar = ASKED.get(width, {}).get(name)
            row["goal"] = "" if bar is None else f"<= {bar}"
            results.append({**row, "threads": threads, "kernels": library.available()})
    return results


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--widths", type=int, nargs="+", default=[150, 400, 750])
    options.add_argument("--rounds", type=int, default=100, help="timed steps of each network")
    arguments = options.parse_args()
    if arguments.quick:
        arguments.widths, arguments.rounds = [60], 2
    show(measure(arguments.widths, arguments.rounds, arguments.threads), COLUMNS, as_json=arguments.json)


if __name__ == "__main__":
    main()

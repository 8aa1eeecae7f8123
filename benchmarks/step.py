"""Time of one training step over that of a plain ``nn.Linear`` network of the same shape and the same Adam.

A step is the one of :func:`vmg.training.train`: it draws f, takes the bound with the categorical likelihood and its
gradient, and makes one step of Adam (fused, for both). The row "own loop" is the same through :func:`vmg.elbo` and
``backward``, and says how long that takes over the step of ``train``.
All networks of a width take turns, so that whatever else the machine does meets all; a ratio is one of medians. With
``--clock cpu`` processor seconds are counted instead of those on the wall.

    python benchmarks/step.py [--json] [--widths 150 400 750] [--rounds 100] [--clock wall]
"""

from __future__ import annotations

import time

import torch
from measuring import (
    CLASSES,
    INPUTS,
    Row,
    bayesian_step,
    interleaved,
    minibatch,
    own_loop_step,
    parser,
    plain_step,
    show,
)

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
    "over train's step": "{over_train}",
    "goal of it": "{goal_over_train}",
}
OWN_LOOP, SEQUENTIAL = "P=50, own loop", "P=50, own loop, nn.Sequential"
ASKED = {  # at most; by width
    150: {"P=50": 3.0, "P=20": 2.2, SEQUENTIAL: 2.9},
    400: {"P=50": 2.4, "P=20": 1.9, "zero mean, P=50": 1.5},
    750: {"P=50": 2.1, "P=20": 1.7, "zero mean, P=50": 1.0},
}
ASKED_OF_OWN_LOOP = {150: 1.15, 750: 1.05}  # over the step of train, at most
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def measure(widths: list[int], rounds: int, threads: int, clock: str = "wall") -> list[Row]:
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    x, y = minibatch()
    results: list[Row] = []
    for width in widths:
        steps = {name: bayesian_step(width, x, y, **options) for name, options in VARIANTS.items()}
        steps[OWN_LOOP] = own_loop_step(width, x, y, **VARIANTS["P=50"])
        steps[SEQUENTIAL] = own_loop_step(width, x, y, sequential=True, **VARIANTS["P=50"])
        medians = interleaved({"nn.Linear": plain_step(width, x, y), **steps}, rounds, clock=CLOCKS[clock])
        plain = medians.pop("nn.Linear")
        for name, milliseconds in medians.items():
            row: Row = {"layers": f"{INPUTS}-" + f"{width}-" * 3 + str(CLASSES), "width": width, "variant": name}
            row |= {"ms": milliseconds, "plain_ms": plain, "ratio": milliseconds / plain}
            bar = ASKED.get(width, {}).get(name)
            row["goal"] = "" if bar is None else f"<= {bar}"
            own = name == OWN_LOOP
            row["over_train"] = f"{milliseconds / medians['P=50']:.2f}×" if own else ""
            most = ASKED_OF_OWN_LOOP.get(width) if own else None
            row["goal_over_train"] = "" if most is None else f"<= {most}"
            results.append({**row, "threads": threads, "clock": clock, "kernels": library.available()})
    return results


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--widths", type=int, nargs="+", default=[150, 400, 750])
    options.add_argument("--rounds", type=int, default=100, help="timed steps of each network")
    options.add_argument("--clock", choices=list(CLOCKS), default="wall")
    arguments = options.parse_args()
    if arguments.quick:
        arguments.widths, arguments.rounds = [60], 2
    rows = measure(arguments.widths, arguments.rounds, arguments.threads, arguments.clock)
    show(rows, COLUMNS, as_json=arguments.json)


if __name__ == "__main__":
    main()

"""Peak memory of training at 784-750-750-750-10, over that of a plain network; each in a process of its own.

``ru_maxrss`` counts the whole process, PyTorch's own libraries included; the second ratio is of what training adds to
a process that has trained a plain network of width one. Both networks train with fused Adam; ours also keeps the last
good values of its parameters and, in the first row, their average over steps, as :func:`vmg.training.train` does.

    python benchmarks/memory.py [--json] [--width 750] [--points 50]
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
from collections.abc import Sequence

# PyTorch is imported in the children only: a child's peak would start at its parent's size

KINDS = ("smallest", "plain", "vmg", "vmg, no average")


def child(kind: str, width: int, points: int, threads: int) -> float:
    """Train a few steps; the process's peak, in megabytes."""
    import torch
    from measuring import BATCH, CLASSES, INPUTS, minibatch, plain_step

    from vmg.likelihoods import CategoricalLikelihood
    from vmg.nn import MLP
    from vmg.training import train

    torch.set_num_threads(threads)
    x, y = minibatch()
    if kind.startswith("vmg"):
        network = MLP(INPUTS, (width,) * 3, CLASSES, n_pseudo=points)
        averaging = 0.999 if kind == "vmg" else None
        train(network, CategoricalLikelihood(), x, y, n_steps=5, batch_size=BATCH, averaging=averaging)
    else:
        step = plain_step(width if kind == "plain" else 1, x, y)
        for _ in range(5):
            step()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)  # bytes there, kilobytes elsewhere


def measure(kinds: Sequence[str], width: int, points: int, threads: int) -> list[dict[str, object]]:
    """A row for each kind of ours; the first two of ``kinds`` are what it is compared with."""
    peak = {}
    for kind in kinds:
        command = [sys.executable, __file__, "--child", kind, "--threads", str(threads)]
        command += ["--width", str(width), "--points", str(points)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"the {kind} process failed:\n{done.stderr}")
        peak[kind] = float(done.stdout)
    added = {kind: peak[kind] - peak["smallest"] for kind in kinds[1:]}
    return [
        {
            "width": width,
            "points": points,
            "averages": "yes" if kind == "vmg" else "no",
            "plain_mb": peak["plain"],
            "vmg_mb": peak[kind],
            "ratio": peak[kind] / peak["plain"],
            "goal": "<= 1.6",
            "plain_added_mb": added["plain"],
            "vmg_added_mb": added[kind],
            "added_ratio": added[kind] / max(added["plain"], 1.0),
            "threads": threads,
        }
        for kind in kinds[2:]
    ]


COLUMNS = {
    "network": "3×{width}, P={points}",
    "average": "{averages}",
    "plain, MB": "{plain_mb:.0f}",
    "vmg, MB": "{vmg_mb:.0f}",
    "ratio": "{ratio:.2f}×",
    "goal": "{goal}",
    "plain adds, MB": "{plain_added_mb:.0f}",
    "vmg adds, MB": "{vmg_added_mb:.0f}",
    "ratio of these": "{added_ratio:.2f}×",
}


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--quick", action="store_true", help="tiny sizes: shows that it runs, measures nothing")
    options.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options.add_argument("--width", type=int, default=750)
    options.add_argument("--points", type=int, default=50)
    options.add_argument("--child", choices=KINDS, help=argparse.SUPPRESS)
    a = options.parse_args()
    if a.quick:
        a.width, a.points = 20, 5
    if a.child:
        print(child(a.child, a.width, a.points, a.threads))
        return
    kinds = KINDS[:3] if a.quick else KINDS
    rows = measure(kinds, a.width, a.points, a.threads)
    if a.json:
        print(json.dumps(rows, indent=2))
        return
    from measuring import show  # brings PyTorch with it, which by now may grow this process

    show(rows, COLUMNS, as_json=False)


if __name__ == "__main__":
    main()

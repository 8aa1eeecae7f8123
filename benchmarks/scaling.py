"""How a training step grows: with the width, with the number of pseudo-points, and with the number of rows.

Width and points: 784-h-h-h-10, batch 100, beside the plain network of the same width. Rows: a table of 20 columns
streamed from memory-mapped files, every size in a process of its own; the time per row should be constant, and the
memory of the process, apart from the file's own pages, flat. One PNG each goes to ``--out``.

    python benchmarks/scaling.py [--json] [--parts width points rows] [--out results]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
import torch
from measuring import Row, bayesian_step, interleaved, minibatch, parser, plain_step, show

from vmg.likelihoods import GaussianLikelihood
from vmg.nn import MLP
from vmg.training import Progress, train

PARTS = ("width", "points", "rows")
FEATURES, BATCH = 20, 256
COLUMNS = {
    "part": "{part}",
    "size": "{size:,}",
    "network": "{network}",
    "milliseconds": "{ms:.4f}",
    "per": "{per}",
    "memory, MB": "{memory_mb:.0f}",
}


def against_width(widths: list[int], rounds: int) -> list[Row]:
    x, y = minibatch()
    rows = []
    for width in widths:
        steps = {"nn.Linear": plain_step(width, x, y)}
        steps |= {f"P={points}": bayesian_step(width, x, y, n_pseudo=points) for points in (20, 50)}
        for name, ms in interleaved(steps, rounds).items():
            rows.append({"part": "width", "size": width, "network": name, "ms": ms, "per": "step", "memory_mb": 0})
    return rows


def against_points(points: list[int], width: int, rounds: int) -> list[Row]:
    x, y = minibatch()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="n_pseudo should be <")
        steps = {p: bayesian_step(width, x, y, n_pseudo=p) for p in points}
    medians = interleaved({"plain": plain_step(width, x, y), **{str(p): step for p, step in steps.items()}}, rounds)
    plain = medians.pop("plain")
    rows = []
    for p, ms in medians.items():
        size = {"part": "points", "size": int(p), "per": "step", "memory_mb": 0}
        rows += [{**size, "network": f"3×{width}", "ms": ms}, {**size, "network": "nn.Linear", "ms": plain}]
    return rows


def against_rows(sizes: list[int], n_steps: int, threads: int) -> list[Row]:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for n in sizes:
            write_table(Path(folder), n)
            command = [sys.executable, __file__, "--child", folder, "--steps", str(n_steps), "--threads", str(threads)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise RuntimeError(f"the process for {n} rows failed:\n{done.stderr}")
            rows.append({"part": "rows", "size": n, "network": "P=10", "per": "row", **json.loads(done.stdout)})
    return rows


def write_table(folder: Path, n: int, chunk: int = 100_000) -> None:
    """x.npy and y.npy, made up and written a piece at a time."""
    rng = np.random.default_rng(0)
    x = np.lib.format.open_memmap(folder / "x.npy", mode="w+", dtype=np.float32, shape=(n, FEATURES))
    y = np.lib.format.open_memmap(folder / "y.npy", mode="w+", dtype=np.float32, shape=(n, 1))
    for start in range(0, n, chunk):
        part = rng.standard_normal((min(chunk, n - start), FEATURES), dtype=np.float32)
        x[start : start + chunk] = part
        y[start : start + chunk] = np.sin(part[:, :1]) + 0.1 * part[:, 1:2]
    x.flush()
    y.flush()


def train_from_files(folder: Path, n_steps: int) -> dict[str, float]:
    """Milliseconds a row, and the most memory that was the process's own."""
    # "c" is read-only on disk and writable in memory, which is what a tensor asks for
    x, y = (torch.from_numpy(np.load(folder / f"{name}.npy", mmap_mode="c")) for name in ("x", "y"))
    own: list[float] = [own_memory()]

    def look(progress: Progress) -> None:
        own.append(own_memory())

    options = {"n_steps": n_steps, "batch_size": BATCH, "callbacks": [look], "report_every": max(1, n_steps // 10)}
    history = train(MLP(FEATURES, (50,), 1, n_pseudo=10), GaussianLikelihood(1), x, y, **options)
    return {"ms": 1e3 * history.last.seconds / (n_steps * min(BATCH, len(x))), "memory_mb": max(own)}


def own_memory() -> float:
    """Megabytes of anonymous memory: pages of a mapped file come and go as the system likes; 0 where unknown."""
    status = Path("/proc/self/status")
    for line in status.read_text().splitlines() if status.exists() else ():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) / 1024
    return 0.0


def draw(rows: list[Row], part: str, folder: Path) -> Path:
    """One figure of a part: time against size on logarithmic axes, and memory beside it where it was measured."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    own = [row for row in rows if row["part"] == part]
    measured = part == "rows"
    figure, axes = plt.subplots(1, 2 if measured else 1, figsize=(9 if measured else 5, 3.6), squeeze=False)
    for name in dict.fromkeys(row["network"] for row in own):
        line = [row for row in own if row["network"] == name]
        sizes = [row["size"] for row in line]
        axes[0, 0].loglog(sizes, [row["ms"] for row in line], marker="o", label=name)
        if measured:
            axes[0, 1].semilogx(sizes, [row["memory_mb"] for row in line], marker="o", label=name)
    axes[0, 0].set(xlabel={"width": "width", "points": "pseudo-points", "rows": "rows"}[part])
    axes[0, 0].set(ylabel=f"milliseconds per {own[0]['per']}")
    axes[0, 0].legend(frameon=False)
    if measured:
        axes[0, 1].set(xlabel="rows", ylabel="memory, MB", ylim=(0, None))
    figure.tight_layout()
    path = folder / f"scaling_{part}.png"
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return path


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    options.add_argument("--out", type=Path, default=Path("results"), help="folder of the figures")
    options.add_argument("--rounds", type=int, default=30)
    options.add_argument("--steps", type=int, default=2_000, help="steps of each number of rows")
    options.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    a = options.parse_args()
    torch.set_num_threads(a.threads)
    torch.manual_seed(0)
    if a.child:
        print(json.dumps(train_from_files(a.child, a.steps)))
        return
    widths, points, sizes, width = (
        [100, 200, 400, 800, 1600],
        [5, 10, 20, 50, 100, 150],
        [10**k for k in (3, 4, 5, 6)],
        400,
    )
    if a.quick:
        widths, points, sizes, width, a.rounds, a.steps = [60], [5], [300], 20, 1, 3
    rows: list[Row] = []
    if "width" in a.parts:
        rows += against_width(widths, a.rounds)
    if "points" in a.parts:
        rows += against_points(points, width, a.rounds)
    if "rows" in a.parts:
        rows += against_rows(sizes, a.steps, a.threads)
    a.out.mkdir(parents=True, exist_ok=True)
    for part in a.parts:
        draw(rows, part, a.out)
    show(rows, COLUMNS, as_json=a.json)


if __name__ == "__main__":
    main()

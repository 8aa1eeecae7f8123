"""How a training step grows: with the width, with the number of pseudo-points, and with the number of rows.

Width and points: 784-h-h-h-10, batch 100, beside the plain network; a slope is that of log time in log width. The
straight line through the times up to 50 points shows where work that is cubic in the points begins to tell.
Rows: a table of 20 columns in mapped files (``np.load(..., mmap_mode="c")``), every size in a process of its own; the
time per row should be constant, and the memory of the process, apart from the files' pages, flat.

    python lab/scaling.py [--json] [--parts width points rows] [--out lab]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import benchmarks_path  # noqa: F401
import numpy as np
import torch
from measuring import Row, bayesian_step, interleaved, minibatch, parser, plain_step, print_table

from vmg.likelihoods import GaussianLikelihood
from vmg.nn import MLP
from vmg.training import Progress, train

PARTS = ("width", "points", "rows")
FEATURES, BATCH, REPORTS = 20, 256, 25
FEW = 50  # pseudo-points up to which the straight line is fitted


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
    medians = interleaved({0: plain_step(width, x, y), **steps}, rounds)
    plain = medians.pop(0)
    expected = straight_line(medians)
    rows = []
    for p, ms in medians.items():
        size = {"part": "points", "size": p, "per": "step", "memory_mb": 0, "straight_ms": expected[p]}
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
    """Median milliseconds a row, the most memory that was the process's own, and the size of the files."""
    x, y = (torch.from_numpy(np.load(folder / f"{name}.npy", mmap_mode="c")) for name in "xy")
    own: list[float] = [own_memory()]

    def look(progress: Progress) -> None:
        own.append(own_memory())

    every = max(1, n_steps // REPORTS)
    options = {"n_steps": n_steps, "batch_size": BATCH, "callbacks": [look], "report_every": every}
    history = train(MLP(FEATURES, (50,), 1, n_pseudo=10), GaussianLikelihood(1), x, y, **options)
    between = np.diff([0.0, *[record.seconds for record in history.records]])
    steps = np.diff([0, *[record.step for record in history.records]])
    ms = 1e3 * float(np.median(between / steps)) / min(BATCH, len(x))
    return {"ms": ms, "memory_mb": max(own), "files_mb": (x.nbytes + y.nbytes) / 2**20}


def own_memory() -> float:
    """Megabytes of anonymous memory: pages of a mapped file come and go as the system likes; 0 where unknown."""
    status = Path("/proc/self/status")
    for line in status.read_text().splitlines() if status.exists() else ():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) / 1024
    return 0.0


# -- what the numbers say ---------------------------------------------------------------------------------------------


def series(rows: list[Row], part: str) -> dict[str, list[Row]]:
    """The rows of a part by network."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        if row["part"] == part:
            found.setdefault(row["network"], []).append(row)
    return found


def slope(line: list[Row]) -> float:
    """Of log time in log size, over the larger half of the sizes, where a step is more than overhead."""
    upper = line[len(line) // 2 :]
    if len(upper) < 2:
        return float("nan")
    return float(np.polyfit(np.log([row["size"] for row in upper]), np.log([row["ms"] for row in upper]), 1)[0])


def straight_line(medians: dict[int, float]) -> dict[int, float]:
    """Times that grow in proportion to the points, through those of a few."""
    few = [p for p in medians if p <= FEW]
    fit = np.polyfit(few, [medians[p] for p in few], 1)
    return {p: float(np.polyval(fit, p)) for p in medians}


def show(rows: list[Row], part: str) -> None:
    lines = series(rows, part)
    if part == "width":
        plain = lines.pop("nn.Linear")
        header = ["width", "nn.Linear, ms", *[f"{name}{form}" for name in lines for form in (", ms", ", ratio")]]
        table = []
        for k, row in enumerate(plain):
            cells = [
                f"{line[k]['ms'] / form:.2f}{end}"
                for line in lines.values()
                for form, end in ((1, ""), (row["ms"], "×"))
            ]
            table.append([f"{row['size']:,}", f"{row['ms']:.2f}", *cells])
        slopes = [part for line in lines.values() for part in (f"{slope(line):.2f}", "")]
        print_table(header, [*table, [f"slope from {plain[len(plain) // 2]['size']}", f"{slope(plain):.2f}", *slopes]])
    elif part == "points":
        plain = lines.pop("nn.Linear")
        [own] = lines.values()
        header = ["pseudo-points", "ms per step", f"straight line through P <= {FEW}, ms", "nn.Linear, ms", "ratio"]
        table = []
        for row, base in zip(own, plain, strict=True):
            ratio = f"{row['ms'] / base['ms']:.2f}×"
            table.append([str(row["size"]), *[f"{t:.2f}" for t in (row["ms"], row["straight_ms"], base["ms"])], ratio])
        print_table(header, table)
    else:
        header = ["rows", "µs per row", "memory of the process, MB", "files, MB"]
        for line in lines.values():
            cells = [[f"{row['size']:,}", f"{1e3 * row['ms']:.2f}"] for row in line]
            more = [[f"{row['memory_mb']:.0f}", f"{row['files_mb']:.1f}"] for row in line]
            print_table(header, [a + b for a, b in zip(cells, more, strict=True)])
    print()


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    options.add_argument("--out", type=Path, default=Path("lab"), help="folder of the figures")
    options.add_argument("--rounds", type=int, default=40)
    options.add_argument("--steps", type=int, default=4_000, help="steps of each number of rows")
    options.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    a = options.parse_args()
    torch.set_num_threads(a.threads)
    torch.manual_seed(0)
    if a.child:
        print(json.dumps(train_from_files(a.child, a.steps)))
        return
    widths, width = [100, 200, 400, 800, 1600], 400
    points, sizes = [5, 10, 20, 35, 50, 75, 100, 150, 200, 300], [10**k for k in (3, 4, 5, 6)]
    if a.quick:
        widths, points, sizes, width, a.rounds, a.steps = [60, 80, 100], [5, 10], [300], 20, 1, 3
    rows: list[Row] = []
    if "width" in a.parts:
        rows += against_width(widths, a.rounds)
    if "points" in a.parts:
        rows += against_points(points, width, a.rounds)
    if "rows" in a.parts:
        rows += against_rows(sizes, a.steps, a.threads)

    from scaling_figures import draw  # matplotlib takes its time, and the processes of rows do without

    a.out.mkdir(parents=True, exist_ok=True)
    for part in a.parts:
        draw(series(rows, part), part, a.out / f"scaling_{part}.png")
        if not a.json:
            show(rows, part)
    if a.json:
        print(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()

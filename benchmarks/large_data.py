"""Fits and scores of generated Parquet rows: peak memory and time per row, beside scikit-learn's boosted trees.

Rows are made in pieces of 2**20, eight float32 inputs and a target, each piece from its own seed:
``y = sin(2 x0) + x1 x2 + |x3| + 0.3 noise``. Every measurement is a process of its own, and a line of the results file;
lines that are there already are not measured again. Where scores alone are asked for, the model is fitted to 100,000
rows. Seconds of work are of all threads and processes: a busy machine stretches the others.

    python benchmarks/large_data.py [--rows 100000 1000000 10000000] [--out results/large_data.jsonl] [--show]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from vmg.files import append_lines, read_lines

PIECE = 2**20
FEW_ROWS = 100_000
COLUMNS = [f"x{k}" for k in range(8)]
KINDS = ("fit", "fit by two", "score", "score by two", "trees")


def generate(path: Path, n_rows: int) -> None:
    """Write the rows, one piece in memory at a time."""
    import numpy as np
    import pyarrow as pa
    from pyarrow import parquet

    schema = pa.schema([(name, pa.float32()) for name in (*COLUMNS, "y")])
    with parquet.ParquetWriter(path, schema) as writer:
        for piece, start in enumerate(range(0, n_rows, PIECE)):
            rng = np.random.default_rng(piece)
            x = rng.normal(size=(min(PIECE, n_rows - start), len(COLUMNS))).astype(np.float32)
            y = np.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2] + np.abs(x[:, 3]) + 0.3 * rng.normal(size=len(x))
            columns = [*x.T.copy(), y.astype(np.float32)]
            writer.write_table(pa.table(dict(zip(schema.names, columns, strict=True)), schema), row_group_size=131_072)


def peak_megabytes() -> float:
    """Of this process, or of the largest of its children."""
    unit = 2**20 if sys.platform == "darwin" else 2**10
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return max(resource.getrusage(kind).ru_maxrss for kind in kinds) / unit


def child(kind: str, data: str, folder: str, members: str, steps: str) -> dict[str, float]:
    """One measurement."""
    import torch

    from vmg.scale import (
        fit_dataset,
        score_dataset,  # with all that it imports, before the clock starts
    )

    torch.set_num_threads(1)
    model = f"{folder}/model.vmg"
    network = {} if members == "auto" else {"n_members": int(members), "max_iter": int(steps)}
    started, before = time.perf_counter(), time.process_time()
    if kind == "fit":
        fit_dataset(data, "y", options={"random_state": 0, **network}).save(model)
        n_rows = 0
    elif kind.startswith("score"):
        n_jobs = 2 if kind.endswith("two") else 1
        n_rows = score_dataset(model, data, f"{folder}/{kind}", n_jobs=n_jobs).n_rows
    else:
        n_rows, started, before = trees(data, folder)
    used = [resource.getrusage(kind) for kind in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    work = sum(one.ru_utime + one.ru_stime for one in used)
    return {
        "seconds": time.perf_counter() - started,
        "work_seconds": work - before,
        "peak_mb": peak_megabytes(),
        "scored": n_rows,
    }


def trees(data: str, folder: str) -> tuple[int, float, float]:
    """Predict by boosted trees, fitted to 65,536 rows, a batch at a time; only the prediction is timed."""
    import numpy as np
    from pyarrow import parquet
    from sklearn.ensemble import HistGradientBoostingRegressor

    file = parquet.ParquetFile(data)
    first = next(file.iter_batches(65_536)).to_pandas()
    model = HistGradientBoostingRegressor(random_state=0).fit(first[COLUMNS].to_numpy(), first["y"])
    started, before, n_rows = time.perf_counter(), time.process_time(), 0
    for k, batch in enumerate(file.iter_batches(65_536, columns=COLUMNS)):
        found = model.predict(batch.to_pandas().to_numpy())
        np.save(f"{folder}/trees-{k}.npy", found)
        n_rows += len(found)
    return n_rows, started, before


def measure(kind: str, data: Path, folder: Path, network: list[str]) -> dict[str, float]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--child", kind, str(data), str(folder), *network]
    if kind == "fit by two":
        launcher = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "29611"]
        options = ["-m", "vmg", "fit", str(data), "-t", "y", "-o", str(folder / "two.vmg"), "--stream", "--quiet"]
        command = [sys.executable, *launcher, *options]
    started = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise RuntimeError(f"{kind} failed:\n{done.stderr[-3000:]}")
    if kind == "fit by two":
        return {"seconds": time.perf_counter() - started, "work_seconds": 0.0, "peak_mb": 0.0, "scored": 0}
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--rows", type=int, nargs="+", default=[100_000, 1_000_000, 10_000_000])
    options.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
    options.add_argument("--out", type=Path, default=Path("results/large_data.jsonl"))
    options.add_argument("--show", action="store_true", help="only print what the file holds")
    options.add_argument("--members", default="auto", help="of the network, 2 for a fit that is quick")
    options.add_argument("--steps", default="auto", help="at most, with --members")
    options.add_argument("--child", nargs=5, help=argparse.SUPPRESS)
    asked = options.parse_args()
    if asked.child:
        print(json.dumps(child(*asked.child)))
        return
    there = read_lines(asked.out)
    for n_rows in [] if asked.show else asked.rows:
        left = [
            kind
            for kind in asked.kinds
            if not any((r["rows"], r["kind"], r["members"]) == (n_rows, kind, asked.members) for r in there)
        ]
        if not left:
            continue
        network = [asked.members, asked.steps]
        with tempfile.TemporaryDirectory() as folder:
            data = Path(folder) / "rows.parquet"
            generate(data, n_rows)
            if "fit" not in left and any(kind.startswith("score") for kind in left):
                few = Path(folder) / "few.parquet"  # as good as all rows for a model that is timed
                generate(few, min(n_rows, FEW_ROWS))
                measure("fit", few, Path(folder), network)
            for kind in left:
                record = {
                    "rows": n_rows,
                    "kind": kind,
                    "members": asked.members,
                    **measure(kind, data, Path(folder), network),
                }
                there.append(record)
                append_lines(asked.out, [record])
    print("| rows | what | members | seconds | seconds of work | work a row, microseconds | peak MB |")
    print("|---|---|---|---|---|---|---|")
    for r in there:
        micro = 1e6 * r["work_seconds"] / r["rows"]
        row = f"{r['seconds']:.1f} | {r['work_seconds']:.1f} | {micro:.2f} | {r['peak_mb']:.0f}"
        print(f"| {r['rows']:,} | {r['kind']} | {r['members']} | {row} |")


if __name__ == "__main__":
    main()

"""A streamed fit of generated rows of Year's size, 515,345 x 90: processor time and peak memory.

Year itself cannot always be had. Rows are written as Parquet, a piece of 65,536 at a time: normal features and
``y = 1998 + 6 sin x0 + 4 x1 x2 + 3 |x3| + 8 noise``, cut to whole years. One JSON line is appended to the results file.

    python lab/year_size.py [--rows 515345] [--out lab/results/year_size.jsonl]
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import torch
from pyarrow import parquet

from vmg.files import append_lines
from vmg.scale import fit_dataset
from vmg_paper.data.year import N_COLUMNS, N_ROWS, N_TRAIN

PIECE = 65_536


def rows(piece: int, n_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Features and years of a piece, from its own seed."""
    rng = np.random.default_rng(piece)
    x = rng.normal(size=(n_rows, N_COLUMNS - 1)).astype(np.float32)
    y = 1998 + 6 * np.sin(x[:, 0]) + 4 * x[:, 1] * x[:, 2] + 3 * np.abs(x[:, 3]) + 8 * rng.normal(size=n_rows)
    return x, y.round()


def generate(path: Path, n_rows: int) -> None:
    """Write the rows, one piece in memory at a time."""
    names = [f"x{k}" for k in range(N_COLUMNS - 1)]
    schema = pa.schema([*((name, pa.float32()) for name in names), ("year", pa.float64())])
    with parquet.ParquetWriter(path, schema) as writer:
        for piece, start in enumerate(range(0, n_rows, PIECE)):
            x, y = rows(piece, min(PIECE, n_rows - start))
            writer.write_table(pa.table(dict(zip(schema.names, [*x.T.copy(), y], strict=True)), schema))


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--rows", type=int, default=N_ROWS)
    options.add_argument("--out", type=Path, default=Path("lab/results/year_size.jsonl"))
    given = options.parse_args()
    torch.set_num_threads(1)
    n_train = round(given.rows * N_TRAIN / N_ROWS)
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "year.parquet"
        generate(data, n_train)
        started = time.process_time()
        model = fit_dataset(data, "year", options={"random_state": 0})
        work, peak = time.process_time() - started, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        x, y = rows(10**6, given.rows - n_train)
        prediction = model.pred_dist(pd.DataFrame(x, columns=[f"x{k}" for k in range(x.shape[1])]))
    unit = 2**20 if sys.platform == "darwin" else 2**10
    line = {
        "rows": n_train,
        "columns": N_COLUMNS - 1,
        "work_seconds": round(work, 1),
        "peak_mb": round(peak / unit),
        "rmse": round(float(np.sqrt(np.mean((prediction.mean - y) ** 2))), 3),
        "log_likelihood": round(float(prediction.log_prob(y).mean()), 3),
    }
    append_lines(given.out, [line])
    print(line)


if __name__ == "__main__":
    main()

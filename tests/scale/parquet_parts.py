"""Small datasets of Parquet parts, some of them bad."""

import numpy as np
import pandas as pd
import pyarrow as pa
from pyarrow import parquet


def make_frame(n_rows, seed=0):
    """Rows with a number, a text, a hole now and then, and a target that depends on both."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=n_rows)
    kind = rng.choice(["red", "green", "blue"], n_rows)
    y = np.sin(2 * x) + (kind == "red") + 0.1 * rng.normal(size=n_rows)
    z = np.where(rng.random(n_rows) < 0.1, np.nan, rng.normal(5, 2, n_rows))
    return pd.DataFrame({"x": x, "z": z, "kind": kind, "y": y, "key": np.arange(n_rows) + 1000 * seed})


def write_parts(folder, sizes, *, row_group_size=100):
    """A part for each size, named a.parquet, b.parquet and so on; all of their rows in one table."""
    folder.mkdir(parents=True, exist_ok=True)
    frames = []
    for k, size in enumerate(sizes):
        frame = make_frame(size, seed=k)
        parquet.write_table(
            pa.Table.from_pandas(frame, preserve_index=False),
            folder / f"{'abcdefgh'[k]}.parquet",
            row_group_size=row_group_size,
        )
        frames.append(frame)
    return pd.concat(frames, ignore_index=True)


def damage_pages(path):
    """Overwrite the middle of a file: its footer can be read, its rows cannot."""
    data = bytearray(path.read_bytes())
    start, stop = 4, int(len(data) * 0.5)
    data[start:stop] = b"\xff" * (stop - start)
    path.write_bytes(bytes(data))

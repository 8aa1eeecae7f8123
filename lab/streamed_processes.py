"""A streamed fit by one process and by two on this machine: seconds of each part, and what the cost model says of two.

Both are started the same way, each process with one thread, in turns. The model takes the parts of one process: passes
are divided by the processes, and the sample's training by the members that each has.

    python lab/streamed_processes.py [--rows 400000] [--rounds 3] [--out lab/results/streamed_processes.jsonl]
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import tempfile
import time
from pathlib import Path
from typing import Any

import benchmarks_path  # noqa: F401
import large_data
import torch
from processes import take_core
from torch import distributed, multiprocessing

STEPS = 60
PARTS = ("first pass", "sample", "second pass")


def work(rank: int, size: int, port: int, folder: str, answers: Any) -> None:
    """Fit, and answer with the seconds of each part."""
    from vmg.scale import fit_dataset, stream

    take_core(rank)
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    if size > 1:
        distributed.init_process_group("gloo", rank=rank, world_size=size)
    marks = [time.perf_counter()]

    def marked(function: Any) -> Any:
        def wrapper(*arguments: Any, **options: Any) -> Any:
            before = time.perf_counter()
            answer = function(*arguments, **options)
            marks.append(time.perf_counter() - before)
            return answer

        return wrapper

    for name in ("_first_pass", "fit_on_sample", "condition_on_all"):
        setattr(stream, name, marked(getattr(stream, name)))
    fit_dataset(folder, "y", options={"random_state": 0, "max_iter": STEPS, "n_iter_no_change": STEPS})
    answers.put((rank, dict(zip(PARTS, marks[1:], strict=True))))
    if size > 1:
        distributed.destroy_process_group()


def measure(size: int, folder: str) -> dict[str, float]:
    context = multiprocessing.get_context("spawn")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    answers = context.Queue()
    processes = [context.Process(target=work, args=(rank, size, port, folder, answers)) for rank in range(size)]
    for process in processes:
        process.start()
    found = dict(answers.get(timeout=900) for _ in processes)
    for process in processes:
        process.join()
    return found[0]


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--rows", type=int, default=400_000)
    options.add_argument("--rounds", type=int, default=3, help="interleaved; the median is kept")
    options.add_argument("--out", type=Path)
    asked = options.parse_args()
    found: dict[int, list[dict[str, float]]] = {1: [], 2: []}
    with tempfile.TemporaryDirectory() as folder:
        for part in range(8):
            large_data.generate(Path(folder) / f"{part}.parquet", asked.rows // 8)
        for _ in range(asked.rounds):
            for size, ones in found.items():
                ones.append(measure(size, folder))
    rows = []
    for part in PARTS:
        one, two = (sorted(record[part] for record in ones)[len(ones) // 2] for ones in found.values())
        rows.append({"part": part, "rows": asked.rows, "one": one, "two": two, "predicted": one / 2})
    for row in rows:
        print(row)
    if asked.out:
        asked.out.write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()

"""Time that fits would take on 8 and 64 machines: costs measured here, a model of them, stragglers and a lost process.

``--measure`` times the parts of a streamed fit on this machine, in seconds of one core's work: both passes over a row
of 8 and of 100 columns, and the steps on the sample. Without it the numbers in the results file are used. The rest is
arithmetic and a simulation with a fixed seed.

    python lab/scaling_machines.py [--measure] [--out lab/results/scaling_machines.jsonl]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vmg.files import read_lines

ROWS, MACHINES, CORES = 10**9, (1, 2, 8, 64), 16
BANDWIDTH, LATENCY = 1.25e9, 5e-5  # of one machine's network: 10 Gbit/s, and 50 microseconds a message
SAMPLE = 65_536
MEMBERS = 6  # that processes can share
MORE_ROWS = 64  # times the rows of a step here: 64 processes then have as many each as one has here


def measure(columns: int, n_rows: int = 2**16) -> dict[str, float]:
    """Work of one core for each part of a streamed fit to this many columns."""
    import pyarrow as pa
    import torch
    from pyarrow import parquet

    from vmg.scale import fit_dataset, stream

    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n_rows, columns)).astype(np.float32)
    y = np.sin(2 * x[:, 0]) + x[:, 1] + 0.3 * rng.normal(size=n_rows)
    names = [f"x{k}" for k in range(columns)]
    work: dict[str, float] = {}

    def timed(name: str) -> Any:
        function = getattr(stream, name)

        def wrapper(*arguments: Any, **options: Any) -> Any:
            started = time.process_time()
            answer = function(*arguments, **options)
            work[name] = time.process_time() - started
            return answer

        return wrapper

    for name in ("_first_pass", "fit_on_sample", "condition_on_all"):
        setattr(stream, name, timed(name))
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/rows.parquet"
        parquet.write_table(pa.table(dict(zip([*names, "y"], [*x.T.copy(), y], strict=True))), path)
        model = fit_dataset(path, "y", options={"max_iter": 40, "random_state": 0})
    return {
        "first_pass_us": 1e6 * work["_first_pass"] / n_rows,
        "second_pass_us": 1e6 * work["condition_on_all"] / n_rows,
        "step_ms": 1e3 * work["fit_on_sample"] / max(1, model.estimator.n_steps_),
    }


def fit_seconds(cost: dict[str, float], machines: int, cores: int = CORES, steps: int = 800) -> float:
    """A streamed fit: the sample's steps on as many cores as there are members, both passes on all."""
    passes = (cost["first_pass_us"] + cost["second_pass_us"]) * 1e-6 * ROWS / (machines * cores)
    sums = 6 * 152**2 * 8 * 2 / BANDWIDTH + 2 * np.log2(max(2, machines * cores)) * LATENCY
    return sample_seconds(cost, machines * cores, steps) + passes + float(sums)


def sample_seconds(cost: dict[str, float], processes: int, steps: int = 800) -> float:
    """Steps on the sample: the process with most members decides, and all agree after each step."""
    most = -(-MEMBERS // min(processes, MEMBERS)) / MEMBERS
    return steps * (cost["step_ms"] * 1e-3 * most + (LATENCY * 2 * np.log2(processes) if processes > 1 else 0.0))


@dataclass(frozen=True)
class StepCost:
    """Cost of a step of `train` for one process, in seconds.

    ``fixed`` is what does not depend on the rows: draws and KL of weights, the optimiser. ``contention`` is how many
    times as long processes on one machine take for it when they run at the same time, without a word to each other.
    ``copies`` takes the gradient into the message and back. ``waking`` is what arithmetic takes longer after a sleep,
    since caches and the core went to others. ``latency`` is of a message after some work, with the wait
    for the slower process in it.
    """

    fixed: float
    per_row: float
    parameters: int
    contention: float = 1.0
    copies: float = 0.0
    waking: float = 0.0
    bandwidth: float = BANDWIDTH
    latency: float = LATENCY
    messages: int = 1  # a step: the gradient, and where the noise is learned the outputs of the batch

    def seconds(self, rows: float, processes: int) -> tuple[float, float]:
        """Arithmetic and messages of a step with so many rows for each process: a ring moves 2(W - 1)/W of 4P bytes."""
        work = self.fixed + self.per_row * rows
        if processes == 1:
            return work, 0.0
        ring = 2 * (processes - 1) / processes * 4 * self.parameters / self.bandwidth
        delay = self.messages * 2 * (processes - 1) * self.latency
        return work * self.contention + self.copies + self.waking, ring + delay


def stragglers(processes: int, rng: np.random.Generator, steps: int = 2000) -> dict[str, float]:
    """Mean time of a step whose processes wait for the slowest, in units of a step that nothing delays.

    Every process's step varies by 5 % (log-normal); one in a thousand takes ten times as long. In a streamed fit a
    process waits at the end of a pass alone, of 200 pieces each.
    """
    times = np.exp(0.05 * rng.normal(size=(steps, processes)))
    times *= np.where(rng.random(times.shape) < 1e-3, 10.0, 1.0)
    passes = times[: steps - steps % 200].reshape(-1, 200, processes).sum(1)
    half = times.copy()
    half[:, 0] *= 2
    return {
        "every step": float(times.max(1).mean()),
        "every pass": float(passes.max(1).mean() / 200),
        "every step, one machine at half speed": float(half.max(1).mean()),
    }


def lost_process(hours: float, processes: int, every_hours: float | None, rng: np.random.Generator) -> float:
    """Mean hours of a run in which one process is lost at a random moment: work since the last file is done again."""
    moment = rng.uniform(0, hours, 10_000)
    restart = 2 / 60  # to start processes again and read the file
    again = moment if every_hours is None else moment % every_hours
    return float((hours + again + restart).mean())


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--measure", action="store_true")
    options.add_argument("--steps", type=Path, default=Path("lab/results/processes.jsonl"), help="of lab/processes.py")
    options.add_argument("--out", type=Path, default=Path("lab/results/scaling_machines.jsonl"))
    asked = options.parse_args()
    kept = [record for record in read_lines(asked.out) if record["part"] == "measured"]
    if asked.measure or not kept:
        kept = [{"part": "measured", "columns": columns, **measure(columns)} for columns in (8, 100)]
    found = list(kept)
    wide = next(record for record in kept if record["columns"] == 100)
    for machines in (8, 64):
        seconds = fit_seconds(wide, machines)
        steps = sample_seconds(wide, machines * CORES)
        found.append({"part": "streamed fit", "rows": ROWS, "columns": 100, "machines": machines, "cores": CORES,
                      "minutes": seconds / 60, "share_of_sample": steps / seconds})  # fmt: skip
    for record in (step for step in read_lines(asked.steps) if step["processes"] == "two, batch each"):
        parts = {
            name: record["cost"][name] for name in ("fixed", "per_row", "parameters", "copies", "waking", "messages")
        }
        cost, one = StepCost(**parts), StepCost(**{**parts, "copies": 0.0})  # a machine for each process: no contention
        rows = MORE_ROWS * record["rows"] // 2
        alone = sum(one.seconds(rows, 1))
        for machines in MACHINES:
            work, talk = cost.seconds(rows / machines, machines)
            found.append({"part": "train", "network": record["case"], "rows_a_step": rows,
                          "machines": machines, "ms": 1e3 * (work + talk), "talk_share": talk / (work + talk),
                          "speed_up": alone / (work + talk)})  # fmt: skip
    rng = np.random.default_rng(0)
    for processes in (2, 8, 64):
        found.append({"part": "stragglers", "processes": processes, **stragglers(processes, rng)})
    for every in (None, 1.0, 0.1):
        hours = lost_process(5.0, 64, every, rng)
        found.append({"part": "lost process", "hours_without": 5.0, "file_every_hours": every, "hours": hours})
    asked.out.write_text("".join(json.dumps(record) + "\n" for record in found))
    for record in found:
        print(record)


if __name__ == "__main__":
    main()

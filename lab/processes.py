"""Steps of one network by one process and by two on loopback: throughput, and what the cost model says of them.

With the same rows for each process (twice the batch), and with the same batch shared between them. One thread each. The
model (``StepCost`` in ``lab/scaling_machines.py``) is made of parts that are measured apart from the steps it
predicts: a step of one process with all and with half of the rows, two processes that run at the same time and know
nothing of each other (contention), one process that sleeps after every step as one that waits for a message does (what
it lost of its caches and its core), messages of two sizes after some work, and bare copies.

    python lab/processes.py [--quick] [--steps 60] [--out lab/results/processes.jsonl]
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from scaling_machines import StepCost
from torch import distributed, multiprocessing

CASES = {  # inputs, hidden layers, outputs, rows of a batch, pseudo-points
    "3x750": (784, (750, 750, 750), 10, 100, 50),
    "wide table": (2000, (100,), 1, 256, 0),
    "quick": (20, (8,), 1, 16, 0),
}


@dataclass(frozen=True)
class Setting:
    """So many processes, that share a network or not, with a part of the batch's rows for each; seconds of sleep."""

    processes: int
    shared: bool
    part: float
    pause: float = 0.0


SETTINGS = {
    "one": Setting(1, False, 1.0),
    "one, half the rows": Setting(1, False, 0.5),
    "one, that sleeps": Setting(1, False, 1.0, pause=5e-3),
    "two, apart": Setting(2, False, 1.0),
    "two, batch each": Setting(2, True, 1.0),
    "two, batch shared": Setting(2, True, 0.5),
}


def take_core(rank: int) -> None:
    """Give each process a core of its own, where the system can: two on one core would wait for each other."""
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[rank % len(cores)]})


def work(rank: int, setting: Setting, port: int, case: str, steps: int, together: Any, answers: Any) -> None:
    """Train, and answer with the seconds of a step, of its messages and of bare ones."""
    from vmg.likelihoods import CategoricalLikelihood, GaussianLikelihood
    from vmg.nn import MLP
    from vmg.training import loop as sharing
    from vmg.training import train

    take_core(rank)
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    inputs, hidden, outputs, batch, points = CASES[case]
    torch.manual_seed(0)
    x = torch.randn(4096, inputs)
    network = MLP(inputs, hidden, outputs, n_pseudo=points)
    parameters = sum(p.numel() for p in network.parameters())
    found: dict[str, Any] = {"parameters": parameters}
    size = setting.processes if setting.shared else 1
    if setting.shared:
        distributed.init_process_group("gloo", rank=rank, world_size=size)
        found |= {**bare_messages(), "copies": bare_copies(parameters)}
    spent, slept, sent = [0.0], [0.0], [0, 0]
    for name in ("all_reduce", "all_gather"):
        original = getattr(distributed, name)

        def timed(*arguments: Any, original: Any = original, **options: Any) -> Any:
            sent[0], sent[1] = sent[0] + arguments[-1].nbytes, sent[1] + 1
            started = time.perf_counter()
            answer = original(*arguments, **options)
            spent[0] += time.perf_counter() - started
            return answer

        setattr(distributed, name, timed)
    mean = sharing.Processes.mean_

    def drowsy(self: Any, *arguments: Any) -> Any:
        answer, before = mean(self, *arguments), time.perf_counter()
        time.sleep(setting.pause)
        slept[0] += time.perf_counter() - before
        return answer

    if setting.pause:
        sharing.Processes.mean_ = drowsy  # type: ignore[method-assign]
    classes = outputs > 1
    y = torch.randint(outputs, (len(x),)) if classes else torch.randn(len(x), outputs)
    likelihood = CategoricalLikelihood() if classes else GaussianLikelihood(outputs)
    rows = round(batch * setting.part) * size
    marks: list[tuple[float, ...]] = []

    def mark(progress: object) -> None:
        marks.append((time.perf_counter() - slept[0], spent[0], *sent))

    together.wait()
    train(network, likelihood, x, y, n_steps=steps, batch_size=rows, report_every=steps // 4, callbacks=[mark])
    taken = 3 * (steps // 4)  # the first quarter warms up
    seconds, talk, message, n_messages = (
        (last - first) / taken for first, last in zip(marks[0], marks[-1], strict=True)
    )
    found |= {"ms": 1e3 * seconds, "talk_ms": 1e3 * talk, "message_bytes": message, "messages": round(n_messages)}
    found["rows"] = rows
    answers.put((rank, found))
    if setting.shared:
        distributed.destroy_process_group()


def bare_messages(n_times: int = 30) -> dict[str, float]:
    """Latency of a message and bandwidth of this group, from sums of one number and of a million.

    Each comes after some milliseconds of work, as in a step: processes do not arrive at the same moment, and who waits
    for a message sleeps. The mean is taken, as of steps.
    """
    square, seconds = torch.randn(400, 400), []
    for n in (1, 10**6):
        vector, taken = torch.zeros(n), 0.0
        for _ in range(n_times):
            for _ in range(3):
                torch.mm(square, square)
            started = time.perf_counter()
            distributed.all_reduce(vector)
            taken += time.perf_counter() - started
        seconds.append(taken / n_times)
    size = distributed.get_world_size()
    moved = 2 * (size - 1) / size * 4 * 10**6
    return {"latency": seconds[0] / (2 * (size - 1)), "bandwidth": moved / max(seconds[1] - seconds[0], 1e-9)}


def bare_copies(parameters: int, n_times: int = 20) -> float:
    """Seconds to take a gradient into the message and back, by all processes at the same time."""
    gradient, flat, taken = torch.ones(parameters), torch.ones(parameters), []
    for _ in range(n_times):
        distributed.barrier()
        started = time.perf_counter()
        flat.copy_(gradient)
        torch.div(flat, 2, out=gradient)
        taken.append(time.perf_counter() - started)
    return sorted(taken)[n_times // 2]


def measure(case: str, setting: Setting, steps: int) -> dict[str, Any]:
    """Answer of the first process, with the mean of all processes' steps."""
    context = multiprocessing.get_context("spawn")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    answers, together = context.Queue(), context.Barrier(setting.processes)
    arguments = (setting, port, case, steps, together, answers)
    processes = [context.Process(target=work, args=(rank, *arguments)) for rank in range(setting.processes)]
    for process in processes:
        process.start()
    found = dict(answers.get(timeout=900) for _ in processes)
    for process in processes:
        process.join()
    return {**found[0], "ms": sum(one["ms"] for one in found.values()) / len(found)}


def cost(found: dict[str, dict[str, Any]], name: str) -> StepCost:
    """The parts of the model, in seconds; messages and copies were measured before the steps of ``name``."""
    names = ("one", "one, half the rows", "one, that sleeps", "two, apart", name)
    one, half, asleep, apart, shared = (found[key] for key in names)
    per_row = max(0.0, 1e-3 * (one["ms"] - half["ms"]) / (one["rows"] - half["rows"]))
    return StepCost(
        fixed=1e-3 * one["ms"] - per_row * one["rows"],
        per_row=per_row,
        parameters=one["parameters"],
        contention=max(1.0, apart["ms"] / one["ms"]),
        copies=shared["copies"],
        waking=max(0.0, 1e-3 * (asleep["ms"] - one["ms"])),
        bandwidth=shared["bandwidth"],
        latency=shared["latency"],
        messages=shared["messages"],
    )


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--steps", type=int, default=60)
    options.add_argument("--rounds", type=int, default=3, help="interleaved; the median is kept")
    options.add_argument("--quick", action="store_true")
    options.add_argument("--threads", type=int, default=1, help="of each process; one is what is measured")
    options.add_argument("--json", action="store_true")
    options.add_argument("--out", type=Path)
    asked = options.parse_args()
    rows = []
    for case in ["quick"] if asked.quick else ["3x750", "wide table"]:
        found: dict[str, list[dict[str, Any]]] = {name: [] for name in SETTINGS}
        for _ in range(1 if asked.quick else asked.rounds):
            for name, setting in SETTINGS.items():
                found[name].append(measure(case, setting, 8 if asked.quick else asked.steps))
        middle = {name: sorted(ones, key=lambda one: one["ms"])[len(ones) // 2] for name, ones in found.items()}
        one = middle["one"]
        for name, record in middle.items():
            size = SETTINGS[name].processes
            ratio = (record["rows"] / record["ms"]) / (one["rows"] / one["ms"])
            row = {"case": case, "processes": name, **record, "throughput_ratio": ratio}
            if SETTINGS[name].shared:
                parts = cost(middle, name)
                predicted = [1e3 * part for part in parts.seconds(record["rows"] / size, size)]
                row |= {"talk_share": record["talk_ms"] / record["ms"], "cost": asdict(parts),
                        "predicted_ms": sum(predicted), "predicted_talk_ms": predicted[1],
                        "predicted_bytes": 4 * one["parameters"]}  # fmt: skip
            rows.append(row)
    if asked.out:
        asked.out.write_text("".join(json.dumps(row) + "\n" for row in rows))
    if asked.json:
        print(json.dumps(rows, indent=2))
        return
    print("With what the cost model says in brackets:")
    print("| network | processes | rows a step | ms a step | of it messages | bytes | throughput over one |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        steps, message = "{ms:.1f} | |".format(**row), ""
        if "cost" in row:
            steps = "{ms:.1f} ({predicted_ms:.1f}) | {talk_ms:.1f} ({predicted_talk_ms:.1f}) |".format(**row)
            message = "{message_bytes:,.0f} ({predicted_bytes:,.0f})".format(**row)
        first = "| {case} | {processes} | {rows} |".format(**row)
        print(first, steps, message, f"| {row['throughput_ratio']:.2f} |")
    for row in rows:
        if "cost" in row:
            bare = ("parameters", "contention", "bandwidth", "messages")
            told = {name: round(value if name in bare else 1e3 * value, 4) for name, value in row["cost"].items()}
            print(f"{row['case']}, {row['processes']}, in ms: {told}")


if __name__ == "__main__":
    main()

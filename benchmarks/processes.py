"""Steps of one network by one process and by two on loopback: throughput, and the share of time spent talking.

With the same rows for each process (twice the batch), and with the same batch shared between them. One thread each.
Beside it what the cost model of ``benchmarks/scaling_machines.py`` says: from the step of one process, and from the
latency and the bandwidth of bare messages of other sizes.

    python benchmarks/processes.py [--quick] [--steps 60] [--out results/processes.jsonl]
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import time
from pathlib import Path

import torch
from scaling_machines import step_seconds
from torch import distributed, multiprocessing

CASES = {  # inputs, hidden layers, outputs, rows of a batch, pseudo-points
    "3x750": (784, (750, 750, 750), 10, 100, 50),
    "wide table": (2000, (100,), 1, 256, 0),
    "quick": (20, (8,), 1, 16, 0),
}


def work(rank: int, size: int, port: int, case: str, whole: bool, steps: int, answers: object) -> None:
    """Train, and answer with the seconds of a step and of its messages."""
    from vmg.likelihoods import CategoricalLikelihood, GaussianLikelihood
    from vmg.nn import MLP
    from vmg.training import train

    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    if size > 1:
        distributed.init_process_group("gloo", rank=rank, world_size=size)
    spent, sent = [0.0], [0]
    bare = bare_messages() if size > 1 else {}
    for name in ("all_reduce", "all_gather"):
        original = getattr(distributed, name)

        def timed(*arguments: object, original: object = original, **options: object) -> object:
            sent[0] += arguments[-1].nbytes  # type: ignore[attr-defined]
            started = time.perf_counter()
            answer = original(*arguments, **options)  # type: ignore[operator]
            spent[0] += time.perf_counter() - started
            return answer

        setattr(distributed, name, timed)
    inputs, hidden, outputs, batch, points = CASES[case]
    torch.manual_seed(0)
    x = torch.randn(4096, inputs)
    network = MLP(inputs, hidden, outputs, n_pseudo=points)
    classes = outputs > 1
    y = torch.randint(outputs, (len(x),)) if classes else torch.randn(len(x), outputs)
    likelihood = CategoricalLikelihood() if classes else GaussianLikelihood(outputs)
    rows = batch * size if whole else batch
    marks: list[tuple[float, float, int]] = []

    def mark(progress: object) -> None:
        marks.append((time.perf_counter(), spent[0], sent[0]))

    train(network, likelihood, x, y, n_steps=steps, batch_size=rows, report_every=steps // 4, callbacks=[mark])
    taken = 3 * (steps // 4)  # the first quarter warms up
    seconds, talk, message = ((marks[-1][k] - marks[0][k]) / taken for k in (0, 1, 2))
    parameters = sum(p.numel() for p in network.parameters())
    found = {"ms": 1e3 * seconds, "talk_ms": 1e3 * talk, "message_bytes": message, "rows": rows}
    answers.put((rank, {**found, "parameters": parameters, **bare}))  # type: ignore[attr-defined]
    if size > 1:
        distributed.destroy_process_group()


def bare_messages(n_times: int = 20) -> dict[str, float]:
    """Latency of a message and bandwidth of this group, from sums of one number and of a million."""
    seconds = []
    for n in (1, 10**6):
        vector, taken = torch.zeros(n), []
        for _ in range(n_times):
            distributed.barrier()
            started = time.perf_counter()
            distributed.all_reduce(vector)
            taken.append(time.perf_counter() - started)
        seconds.append(sorted(taken)[n_times // 2])
    size = distributed.get_world_size()
    moved = 2 * (size - 1) / size * 4 * 10**6
    return {"latency": seconds[0] / (2 * (size - 1)), "bandwidth": moved / max(seconds[1] - seconds[0], 1e-9)}


def measure(case: str, size: int, whole: bool, steps: int) -> dict[str, float]:
    context = multiprocessing.get_context("spawn")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    answers = context.Queue()
    arguments = (size, port, case, whole, steps, answers)
    processes = [context.Process(target=work, args=(rank, *arguments)) for rank in range(size)]
    for process in processes:
        process.start()
    found = dict(answers.get(timeout=900) for _ in processes)
    for process in processes:
        process.join()
    return found[0]


def predict(one: dict[str, float], record: dict[str, float], size: int) -> dict[str, float]:
    """The step and its message as the cost model has them: arithmetic by rows, and a ring of 4 bytes a parameter."""
    compute = one["ms"] * 1e-3 * record["rows"] / one["rows"]
    work, talk = step_seconds(compute, int(one["parameters"]), size, record.get("bandwidth"), record.get("latency"))
    said = 4 * one["parameters"] if size > 1 else 0
    return {"predicted_ms": 1e3 * (work + talk), "predicted_talk_ms": 1e3 * talk, "predicted_bytes": said}


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
        settings = {"one": (1, True), "two, batch each": (2, True), "two, batch shared": (2, False)}
        found: dict[str, list[dict[str, float]]] = {name: [] for name in settings}
        for _ in range(1 if asked.quick else asked.rounds):
            for name, (size, whole) in settings.items():
                found[name].append(measure(case, size, whole, 8 if asked.quick else asked.steps))
        middle = {name: sorted(ones, key=lambda one: one["ms"])[len(ones) // 2] for name, ones in found.items()}
        one = middle["one"]
        for name, record in middle.items():
            ratio = (record["rows"] / record["ms"]) / (one["rows"] / one["ms"])
            rows.append({"case": case, "processes": name, **record, "throughput_ratio": ratio,
                         "talk_share": record["talk_ms"] / record["ms"],
                         **predict(one, record, settings[name][0])})  # fmt: skip
    if asked.out:
        asked.out.write_text("".join(json.dumps(row) + "\n" for row in rows))
    if asked.json:
        print(json.dumps(rows, indent=2))
        return
    print("With what the cost model says in brackets:")
    print("| network | processes | rows a step | ms a step | of it messages | bytes | throughput over one |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        steps = "{ms:.1f} ({predicted_ms:.1f}) | {talk_ms:.1f} ({predicted_talk_ms:.1f})".format(**row)
        message = "{message_bytes:,.0f} ({predicted_bytes:,.0f})".format(**row)
        print(
            "| {case} | {processes} | {rows} |".format(**row), f"{steps} | {message} | {row['throughput_ratio']:.2f} |"
        )


if __name__ == "__main__":
    main()

"""Processes killed, interrupted or out of disk at random moments: what was whole stays whole, nothing is left over."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

from findings import Finding

from vmg.persistence import read
from vmg.training.checkpoint import Checkpoint

SAVING = """
    import sys, torch
    from vmg.persistence import write
    for number in range(10**6):
        write(sys.argv[1], {"a": torch.full((50_000,), float(number))}, {"holds": "number", "number": number})
        print(number, flush=True)
"""
APPENDING = """
    import sys
    from pathlib import Path
    from vmg_paper.experiments import results_file as records
    for number in range(10**6):
        records.append(Path(sys.argv[1]), [{"number": number, "filling": "x" * (number % 5000)}])
        print(number, flush=True)
"""
TRAINING = """
    import sys, torch
    from pathlib import Path
    from vmg.likelihoods import CategoricalLikelihood
    from vmg.nn import MLP
    from vmg.training import Checkpoint, train
    generator = torch.Generator().manual_seed(0)
    network = MLP(3, (5,), 2, n_pseudo=2)
    network.reset_parameters(generator)
    x = torch.linspace(-1, 1, 60).reshape(20, 3)
    def tell(progress):
        print(progress.step, flush=True)
    train(network, CategoricalLikelihood(), x, (x[:, 0] > 0).long(), n_steps=400, batch_size=4, report_every=2,
          generator=generator, checkpoint=Checkpoint(Path(sys.argv[1])), callbacks=[tell])
    print("end", float(sum(p.double().abs().sum() for p in network.parameters())), flush=True)
"""
FITTING = "from vmg_command import main; main()"


def _start(program: str, *arguments: str, **options) -> subprocess.Popen:
    command = [sys.executable, "-c", textwrap.dedent(program), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def _kill_after(process: subprocess.Popen, n_lines: int, wait: float, number: int) -> tuple[list[str], str]:
    """Everything that a process printed until ``wait`` seconds after its first lines."""
    lines = []
    for line in process.stdout:
        lines.append(line.strip())
        if len(lines) >= n_lines:
            break
    time.sleep(wait)
    process.send_signal(number)
    rest, err = process.communicate(timeout=60)
    return [*lines, *rest.split("\n")[:-1]], err


def kill(rng: random.Random, folder: Path) -> str:
    """One process ended at one moment."""
    for file in folder.iterdir():
        file.unlink()
    return rng.choice((_kill_saving, _kill_appending, _kill_training, _interrupt_fit, _full_disk))(rng, folder)


def _kill_saving(rng: random.Random, folder: Path) -> str:
    path = folder / "model"
    told, _ = _kill_after(_start(SAVING, str(path)), rng.randrange(1, 30), rng.random() * 0.01, signal.SIGKILL)
    number = read(path)[1]["number"]
    if number not in (int(told[-1]), int(told[-1]) + 1):
        raise Finding(f"file {number} is there after {told[-1]} was told")
    return "saving"


def _kill_appending(rng: random.Random, folder: Path) -> str:
    from vmg_paper.experiments import results_file as records

    path = folder / "results.jsonl"
    for _ in range(2):
        told, _ = _kill_after(_start(APPENDING, str(path)), rng.randrange(1, 60), rng.random() * 0.01, signal.SIGKILL)
        numbers = [record["number"] for record in records.read(path)]
        start = len(numbers) - 1 - numbers[::-1].index(0)
        if numbers[start:] != list(range(len(numbers) - start)) or len(numbers) - start not in (
            len(told),
            len(told) + 1,
        ):
            raise Finding(f"{len(numbers) - start} records are there after {len(told)} were told")
    return "appending"


def _kill_training(rng: random.Random, folder: Path) -> str:
    path = folder / "run"
    for _ in range(2):
        process = _start(TRAINING, str(path))
        _kill_after(process, rng.randrange(1, 60), rng.random() * 0.02, signal.SIGKILL)
    if path.exists():
        Checkpoint(path).read({})
    out, err = _start(TRAINING, str(path)).communicate(timeout=120)
    whole, _ = _start(TRAINING, str(folder / "whole")).communicate(timeout=120)
    if out.split("\n")[-2] != whole.split("\n")[-2]:
        raise Finding(
            f"a killed run ended with {out[-200:]!r} and {err[-500:]!r}, not with {whole.split(chr(10))[-2]!r}"
        )
    return "training"


def _interrupt_fit(rng: random.Random, folder: Path) -> str:
    rows = "".join(f"{k % 7},{k % 5},{k * 0.37}\n" for k in range(60))
    (folder / "t.csv").write_text("a,b,y\n" + rows)
    process = _start(FITTING, "fit", "t.csv", "-t", "y", "--max-iter", "1000000", cwd=folder)
    time.sleep(0.3 + 4 * rng.random())
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    if (process.returncode, err) != (130, "error: interrupted\n") or os.listdir(folder) != ["t.csv"]:
        raise Finding(f"an interrupt ended with {process.returncode}, {err!r:.500} and {os.listdir(folder)}")
    return "interrupt"


def _full_disk(rng: random.Random, folder: Path) -> str:
    """A limit on the size of files stands for a full disk."""
    path = folder / "model"
    limit = rng.choice((0, 1, 100, 4096, 100_000))
    program = f"""
        import resource, signal, sys
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
    """
    wanted = textwrap.dedent(program) + textwrap.dedent(SAVING)
    process = subprocess.Popen(
        [sys.executable, "-c", wanted, str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    _, err = process.communicate(timeout=60)
    if "ModelFileError: cannot write" not in err or os.listdir(folder):
        raise Finding(f"a full disk ended with {err[-300:]!r} and {os.listdir(folder)}")
    return "disk"

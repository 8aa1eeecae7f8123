"""Processes killed, interrupted or out of disk at random moments: what was whole stays whole, nothing is left over."""

from __future__ import annotations

import atexit
import functools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from findings import Finding, end_group, limit_process
from victims import Victim, Victims

import vmg
from vmg.files import read_lines
from vmg.model_file import read

INTERRUPTED = (130, "error: interrupted\n")
LONG = ("--max-iter", "1000000", "--hidden", "400,400")
QUICK = ("--max-iter", "30", "--hidden", "4")


@functools.cache
def victims() -> Victims:
    """The process that forks others; it ends with this one."""
    folder = tempfile.mkdtemp()
    found = Victims(Path(folder))
    atexit.register(lambda: (found.close(), shutil.rmtree(folder, ignore_errors=True)))
    return found


def kill(rng: random.Random, folder: Path) -> str:
    """One process ended at one moment."""
    name = rng.choice(list(SITUATIONS))
    SITUATIONS[name](rng, folder)
    return name


def start(work: str, *arguments: str | int, folder: Path, file_limit: int | None = None) -> Victim:
    return victims().start(work, *map(str, arguments), folder=folder, file_limit=file_limit)


def write_table(path: Path) -> None:
    path.write_text("a,b,y\n" + "".join(f"{k % 7},{k % 5},{k * 0.37}\n" for k in range(60)))


@functools.cache
def saved_model() -> bytes:
    """The bytes of a model of that table."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_table(folder / "t.csv")
        code = start("command", "fit", "t.csv", "-t", "y", *QUICK, "-o", "m.vmg", folder=folder).wait()
        assert code == 0, code
        return (folder / "m.vmg").read_bytes()


# -- kill -9 ----------------------------------------------------------------------------------------------------------


def _saving(rng: random.Random, folder: Path) -> None:
    """One or two processes write one file, which is always a whole one of them."""
    path = folder / "model"
    running = [start("save", path, folder=folder) for _ in range(rng.randrange(1, 3))]
    for victim in running:
        victim.end_after(rng.randrange(1, 30), rng.random() * 0.01, signal.SIGKILL)
        number, told = read(path)[1]["number"], int(victim.told()[-1])
        if len(running) == 1 and number not in (told, told + 1):
            raise Finding(f"file {number} is there after {told} was told")


def _appending(rng: random.Random, folder: Path) -> None:
    """Every told record is there once and in its order, and at most one more of each of one or two writers."""
    path = folder / "results.jsonl"
    for writers in rng.choice((([0], [1], [2]), ([0, 1], [2]), ([0, 1],))):
        before = read_lines(path)
        running = {writer: start("append", path, writer, folder=folder) for writer in writers}
        for victim in running.values():
            victim.end_after(rng.randrange(1, 60), rng.random() * 0.01, signal.SIGKILL)
        records = read_lines(path)
        if records[: len(before)] != before:
            raise Finding("records of a former run changed")
        for writer, victim in running.items():
            numbers = [int(r["number"]) for r in records if int(r["writer"]) == writer]
            told = len(victim.told())
            if numbers != list(range(len(numbers))) or len(numbers) not in (told, told + 1):
                raise Finding(f"records {numbers[-3:]} of writer {writer} are there after {told} were told")


@functools.cache
def whole_run() -> str:
    """What a run says at its end that nobody kills."""
    with tempfile.TemporaryDirectory() as folder:
        victim = start("train", Path(folder, "run"), folder=Path(folder))
        assert victim.wait() == 0, victim.said()
        return victim.told()[-1]


def _checkpoints(rng: random.Random, folder: Path) -> None:
    path, expected = folder / "run", whole_run()
    for _ in range(rng.randrange(1, 4)):
        start("train", path, folder=folder).end_after(rng.randrange(1, 60), rng.random() * 0.02, signal.SIGKILL)
    if path.exists():
        read(path)
    victim = start("train", path, folder=folder)
    code = victim.wait()
    if code or victim.told()[-1] != expected:
        raise Finding(f"a killed run ended with {victim.told()[-1:]} and {victim.said()[-500:]!r}, not {expected!r}")


def _fit(rng: random.Random, folder: Path) -> None:
    """An old model stays until a new one is whole."""
    write_table(folder / "t.csv")
    model = folder / "m.vmg"
    old = saved_model()
    model.write_bytes(old)
    victim = start("command", "fit", "t.csv", "-t", "y", *QUICK, "--seed", "5", "-o", "m.vmg", folder=folder)
    victim.end_after(0, rng.random() * 0.6, signal.SIGKILL)
    if model.read_bytes() != old:
        vmg.load(model)


def write_parts(folder: Path) -> None:
    """A dataset of three parts with shops."""
    (folder / "parts").mkdir()
    rng = np.random.default_rng(0)
    for k in range(3):
        a, b = rng.normal(size=(2, 90))
        rows = pd.DataFrame({"a": a, "b": b, "shop": [f"s{n % 3}" for n in range(90)], "y": a + k * b})
        rows.to_parquet(folder / "parts" / f"{k}.parquet")


@functools.cache
def model_of_parts() -> bytes:
    """The bytes of a model of that dataset."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_parts(folder)
        victim = start("command", *RESUMABLE["streamed fit"], folder=folder)
        assert victim.wait() == 0, victim.said()
        return (folder / "whole.vmg").read_bytes()


RESUMABLE = {
    "streamed fit": ("fit", "parts", "-t", "y", *QUICK, "-o", "whole.vmg"),
    "fleet": ("fit", "parts", "-t", "y", "--by", "shop", *QUICK, "-o", "fleet"),
    "scoring": ("predict", "m.vmg", "parts", "-o", "scored/", "--jobs", "1"),
    "fleet, two processes": ("fit", "parts", "-t", "y", "--by", "shop", *QUICK, "-o", "fleet", "--jobs", "2"),
    "scoring, two processes": ("predict", "m.vmg", "parts", "-o", "scored/", "--jobs", "2"),
    "reproduce": ("--splits", "6", "--out", "r.jsonl"),
}


def _start(name: str, folder: Path) -> Victim:
    return start("reproduce" if name == "reproduce" else "command", *RESUMABLE[name], folder=folder)


def _outputs(folder: Path) -> dict[str, object]:
    """What a resumable run has written, but for times."""
    models = {path: vmg.load(path) for path in [*folder.glob("fleet/models/*"), *folder.glob("whole.vmg")]}
    rows = pd.read_parquet(folder / "parts" / "0.parquet")
    predicted = {str(path.relative_to(folder)): model.predict_frame(rows).to_csv() for path, model in models.items()}
    scored = {path.name: pd.read_parquet(path).to_csv() for path in folder.glob("scored/*.parquet")}
    return {**predicted, **scored, "records": [{**r, "seconds": 0} for r in read_lines(folder / "r.jsonl")]}


@functools.cache
def whole_outputs(name: str) -> dict[str, object]:
    """What the run writes when nobody kills it."""
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        write_parts(folder)
        (folder / "m.vmg").write_bytes(model_of_parts())
        victim = _start(name, folder)
        assert victim.wait() == 0, victim.said()
        return _outputs(folder)


def _resumable(rng: random.Random, folder: Path, names: Sequence[str] = tuple(RESUMABLE)) -> None:
    """A streamed fit, a fleet, a scoring or an experiment that is killed some times ends as one that is not."""
    name = rng.choice(names)
    expected = whole_outputs(name)
    write_parts(folder)
    (folder / "m.vmg").write_bytes(model_of_parts())
    for _ in range(rng.randrange(1, 4)):
        _start(name, folder).end_after(0, rng.random() * 0.8, signal.SIGKILL)
    victim = _start(name, folder)
    code = victim.wait()
    if code or _outputs(folder) != expected:
        raise Finding(f"a killed {name} ended with {code}, {victim.said()[-500:]!r} and {sorted(_outputs(folder))}")


def _update(rng: random.Random, folder: Path) -> None:
    """A model that is updated is the old one or the new one, and the old one is kept."""
    old = model_of_parts()
    write_parts(folder)
    (folder / "m.vmg").write_bytes(old)
    rows = pd.read_parquet(folder / "parts" / "0.parquet")
    rows.assign(a=rows["a"] + 0.01).to_parquet(folder / "new.parquet")
    start("command", "update", "m.vmg", "new.parquet", folder=folder).end_after(0, rng.random() * 0.4, signal.SIGKILL)
    vmg.load(folder / "m.vmg")
    if (folder / "m.vmg").read_bytes() != old and (folder / "m.vmg.before").read_bytes() != old:
        raise Finding("an update that was killed lost the model as it was")


# -- Ctrl-C -----------------------------------------------------------------------------------------------------------


def _interrupt(rng: random.Random, folder: Path) -> None:
    """Of a command that has been imported."""
    write_table(folder / "t.csv")
    (folder / "old.vmg").write_bytes(saved_model())
    (folder / "out.csv").write_text("old\n")
    commands = (
        ("fit", "t.csv", "-t", "y", *LONG, "-o", "old.vmg"),
        ("fit", "t.csv", "-t", "y", *LONG, "-o", "old.vmg"),
        ("predict", "old.vmg", "t.csv", "-o", "out.csv"),
        ("report", "old.vmg", "t.csv", "-o", "page.html"),
    )
    arguments = rng.choice(commands)
    victim = start("command", *arguments, folder=folder)
    code = victim.end_after(1, 0.05 + rng.random() * (2.0 if arguments[0] == "fit" else 0.3), signal.SIGINT)
    left = set(os.listdir(folder)) - {"t.csv", "old.vmg", "out.csv", "old.vmg.partial"}  # of finished folds
    said = victim.said()
    if code == 0:
        return  # it was done before
    if code != 130 or not said.endswith("error: interrupted\n") or "Traceback" in said or left:
        raise Finding(f"an interrupt of {arguments} ended with {code}, {said!r:.500} and {left}")
    if (folder / "old.vmg").read_bytes() != saved_model() or (folder / "out.csv").read_text() != "old\n":
        raise Finding(f"an interrupt of {arguments} changed a file")


def _interrupt_start(rng: random.Random, folder: Path) -> None:
    """Of a whole new process, from the moment on that the command has it."""
    write_table(folder / "t.csv")
    program = """
import signal, vmg.__main__ as command

def told(number, handler, signal_=signal.signal):
    before = signal_(number, handler)
    if handler is command._leave:
        print(flush=True)
    return before

signal.signal(signal.SIGINT, signal.default_int_handler)  # a campaign may ignore it
signal.signal = told
command.main()
"""
    command = [sys.executable, "-c", program, "fit", "t.csv", "-t", "y", *LONG]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, cwd=folder, preexec_fn=limit_process, **pipes)
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(0.01 + 4 * rng.random())
    process.send_signal(signal.SIGINT)
    try:
        _, err = process.communicate(timeout=120)
    finally:
        end_group(process.pid)
    if process.returncode == 0:
        return  # it was done before
    if (process.returncode, err) != INTERRUPTED or set(os.listdir(folder)) - {"t.csv", "t.vmg.partial"}:
        raise Finding(f"an interrupt ended with {process.returncode}, {err!r:.500} and {os.listdir(folder)}")


# -- no room on the disk ----------------------------------------------------------------------------------------------


def _full_disk(rng: random.Random, folder: Path) -> None:
    """A limit on the size of files stands for a full disk."""
    write_table(folder / "t.csv")
    (folder / "m.vmg").write_bytes(saved_model())
    out = folder / "out"
    out.mkdir()
    work = rng.choice(("save", "fit", "predict", "report", "reproduce"))
    limit = rng.choice((0, 1, 100, 4096)) if work == "save" else 2048
    path = out / {"save": "o", "fit": "o.vmg", "predict": "o.csv", "report": "o.html", "reproduce": "o.jsonl"}[work]
    record = {"experiment": "none", "dataset": "", "method": "", "seed": 0, "filling": "x" * 3900}
    path.write_text(json.dumps(record) + "\n")
    commands: dict[str, tuple[str, ...]] = {
        "save": ("save", str(path)),
        "fit": ("command", "fit", "t.csv", "-t", "y", *QUICK, "-o", str(path)),
        "predict": ("command", "predict", "m.vmg", "t.csv", "-o", str(path)),
        "report": ("command", "report", "m.vmg", "t.csv", "-o", str(path)),
        "reproduce": ("reproduce", "--splits", "2", "--seed", "9", "--out", str(path)),
    }
    before = path.read_bytes()
    victim = start(commands[work][0], *commands[work][1:], folder=folder, file_limit=limit)
    code, said = victim.wait(), victim.said()
    if work == "save":
        told = "ModelFileError: cannot write" in said
    else:
        told = code == 2 and "Traceback" not in said and said.count("error: ") == 1
    if not told:
        raise Finding(f"a full disk under {work} ended with {code} and {said!r:.500}")
    (out / "o.vmg.partial").unlink(missing_ok=True)  # finished folds of a fit, from which it would go on
    if os.listdir(out) != [path.name] or path.read_bytes() != before:
        raise Finding(f"a full disk under {work} left {os.listdir(out)}")


SITUATIONS: dict[str, Callable[[random.Random, Path], None]] = {
    "saving": _saving,
    "appending": _appending,
    "checkpoints": _checkpoints,
    "fit": _fit,
    "resumable": _resumable,
    "reproduce": functools.partial(_resumable, names=["reproduce"]),
    "update": _update,
    "interrupt": _interrupt,
    "interrupt from the start": _interrupt_start,
    "full disk": _full_disk,
}

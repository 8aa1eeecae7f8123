"""A process that has imported everything and forks others on request, so that a kill costs no second start.

Each line of its input is a request, each line of its output the answer: ``{"start": work, ...}`` forks a victim and
gives its number, ``{"wait": number}`` gives its exit code (negative: the signal). What a victim prints is in two files.
A victim leads a group of processes. Limits hold for each process of it, and what is left of it is killed.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from findings import TIME_LIMIT, Finding, end_group, limit_process

__all__ = ["Victim", "Victims"]

PATIENCE = 300.0  # seconds that a victim may take on a busy machine
GRACE = 10.0  # seconds after a victim's own end that processes it has started may take to end
HUNG, LEFT = 1000, 1001  # answers instead of an exit code
WRONG = {HUNG: "waited for too long", -signal.SIGXCPU: "computed for too long", LEFT: "left processes behind"}


class Victim:
    """One forked process."""

    def __init__(self, server: Victims, number: int, folder: Path) -> None:
        self._server, self.number = server, number
        self._out, self._err = folder / f"{number}.out", folder / f"{number}.err"

    def told(self) -> list[str]:
        """The whole lines that it has printed so far."""
        return self._out.read_text(errors="replace").split("\n")[:-1]

    def said(self) -> str:
        """What it has written to standard error."""
        return self._err.read_text(errors="replace")

    def end_after(self, n_lines: int, seconds: float, signum: int) -> int:
        """Send a signal some time after its first lines; the exit code."""
        end = time.monotonic() + PATIENCE
        while len(self.told()) < n_lines and self.alive() and time.monotonic() < end:
            time.sleep(0.001)
        time.sleep(seconds)
        with contextlib.suppress(ProcessLookupError):  # it has ended already
            os.kill(self.number, signum)
        return self.wait()

    def alive(self) -> bool:
        """Whether it still runs: its parent waits for it only when asked."""
        try:
            return Path(f"/proc/{self.number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except FileNotFoundError:
            return False

    def wait(self) -> int:
        """Its exit code; a Finding where it took too long, or left processes that it had started."""
        code = int(self._server.ask({"wait": self.number}))
        if code in WRONG:
            raise Finding(f"a process {WRONG[code]}, and said {self.said()[-300:]!r}")
        return code


class Victims:
    """Starts victims; their output goes to a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        command = [sys.executable, __file__, str(folder)]
        self._server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def start(
        self,
        work: str,
        *arguments: Any,
        folder: Path,
        file_limit: int | None = None,
        seconds: tuple[float, float] = (PATIENCE, TIME_LIMIT),
    ) -> Victim:
        """Fork a process that does ``work`` in ``folder``.

        Args:
            file_limit: on the size of files that it writes.
            seconds: that it may take, and that it may compute.
        """
        request = {"start": work, "arguments": arguments, "folder": str(folder), "file_limit": file_limit}
        request["seconds"] = seconds
        return Victim(self, int(self.ask(request)), self._folder)

    def ask(self, request: dict[str, Any]) -> Any:
        """Send a request and wait for its answer."""
        assert self._server.stdin is not None and self._server.stdout is not None
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        return json.loads(self._server.stdout.readline())

    def close(self) -> None:
        """End the process that forks."""
        assert self._server.stdin is not None and self._server.stdout is not None
        self._server.stdin.close()
        self._server.wait(PATIENCE)
        self._server.stdout.close()


# -- in the process that forks ----------------------------------------------------------------------------------------


def save(path: str) -> None:
    """Write one model file over another, and tell each."""
    import torch

    from vmg.model_file import write

    for number in range(10**6):
        write(path, {"a": torch.full((50_000,), float(number))}, {"holds": "number", "number": number})
        print(number, flush=True)


def append(path: str, writer: int) -> None:
    """Append records to a results file, and tell each."""
    from vmg.files import append_lines

    for number in range(10**6):
        append_lines(Path(path), [{"writer": writer, "number": number, "filling": "x" * (number % 5000)}])
        print(number, flush=True)


def train(path: str) -> None:
    """Train with a checkpoint; the last line says what came out."""
    import torch

    from vmg.likelihoods import CategoricalLikelihood
    from vmg.nn import MLP
    from vmg.training import Checkpoint
    from vmg.training import train as run

    generator = torch.Generator().manual_seed(0)
    network = MLP(3, (5,), 2, n_pseudo=2)
    network.reset_parameters(generator)
    x = torch.linspace(-1, 1, 60).reshape(20, 3)
    options = {"n_steps": 200, "batch_size": 4, "report_every": 2, "generator": generator}
    options |= {"checkpoint": Checkpoint(Path(path)), "callbacks": [lambda progress: print(progress.step, flush=True)]}
    run(network, CategoricalLikelihood(), x, (x[:, 0] > 0).long(), **options)
    print("end", float(sum(p.detach().double().abs().sum() for p in network.parameters())), flush=True)


def command(*arguments: str) -> int:
    """The command ``vmg``."""
    from vmg.cli.app import run

    print(flush=True)  # from here on it answers Ctrl-C
    return run(arguments)


def hang() -> None:
    """Wait for nothing."""
    time.sleep(1000)


def compute() -> None:
    """Match a pattern for years, in C, where Python hears no signal."""
    re.match("(a+)+$", "a" * 40 + "b")


def _start_child(program: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-c", program])
    Path("child").write_text(str(process.pid))
    return process


def hang_in_a_child() -> None:
    """Wait for a process that waits for nothing."""
    _start_child("import time; time.sleep(1000)").wait()


def leave_a_child() -> None:
    """End before a process that was started."""
    _start_child("import time; time.sleep(1000)")


def allocate_in_a_child() -> int:
    """Start a process that asks for more memory than there may be; its exit code."""
    program = "import sys\ntry: bytearray(2**34)\nexcept MemoryError: sys.exit(7)"
    return _start_child(program).wait()


def reproduce(*arguments: str) -> int:
    """The command with a table and a method that take no time."""
    import numpy as np

    from vmg.variational import VMGRegressor
    from vmg_paper.data import Table
    from vmg_paper.experiments import table1
    from vmg_paper.experiments.table1_methods import TableMethod

    X = np.random.default_rng(0).normal(size=(308, 2))
    table1.load_table = lambda name: Table(name, X, X[:, 0], 20)

    def make(table: str, seed: int) -> VMGRegressor:
        return VMGRegressor((2,), n_pseudo=1, max_noise=0.1, max_iter=1, n_draws=2, random_state=seed)

    table1.TABLE_METHODS["vmg"] = TableMethod("vmg", "", make, together=False)
    return command("reproduce", "table1", "--datasets", "yacht", "--methods", "vmg", *arguments)


WORKS = (save, append, train, command, reproduce, hang, compute, hang_in_a_child, leave_a_child, allocate_in_a_child)
WORK: dict[str, Callable[..., int | None]] = {f.__name__: f for f in WORKS}


NEEDED = (
    *("vmg.cli.app", "vmg.cli.fit", "vmg.estimators.documents", "vmg.nn", "vmg.report", "vmg.tables", "vmg.training"),
    *("vmg_paper.cli", "vmg_paper.experiments.table1"),
)


def _be_victim(request: dict[str, Any], folder: Path) -> int:
    """Do the work. The file of errors comes last: from then on a signal may come."""
    os.chdir(request["folder"])
    limit_process(request["seconds"][1])
    if request["file_limit"] is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (request["file_limit"], resource.RLIM_INFINITY))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for descriptor, ending in ((1, "out"), (2, "err")):
            os.dup2(os.open(folder / f"{os.getpid()}.{ending}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
        return WORK[request["start"]](*request["arguments"]) or 0
    except BaseException:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        traceback.print_exc()
        return 99
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def _wait(number: int, end: float) -> int:
    """The exit code of a victim, after which its whole group is gone."""
    while not (status := os.waitpid(number, os.WNOHANG))[0]:
        if time.monotonic() > end:
            os.killpg(number, signal.SIGKILL)
            os.waitpid(number, 0)
            return HUNG
        time.sleep(0.002)
    code = os.waitstatus_to_exitcode(status[1])
    killed = code == -signal.SIGKILL  # by the campaign: what it had started cannot know
    return LEFT if end_group(number, 0.0 if killed else GRACE) and not killed else code


def serve(folder: Path) -> None:
    """Answer requests until there are no more."""
    for module in NEEDED:
        importlib.import_module(module)
    with tempfile.TemporaryDirectory() as work, open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        train(f"{work}/run")  # first steps load what victims would load each for themselves
    ends: dict[int, float] = {}  # when each victim is to have ended
    for line in sys.stdin:
        request = json.loads(line)
        if "wait" in request:
            answer = _wait(request["wait"], ends.pop(request["wait"]))
        else:
            answer = os.fork()
            ends[answer] = time.monotonic() + request["seconds"][0]
            if not answer:
                sys.exit(_be_victim(request, folder))  # as a command ends, with the processes that it has started
            while not (folder / f"{answer}.err").exists():
                time.sleep(0.0005)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the campaign tells it when to end
    serve(Path(sys.argv[1]))

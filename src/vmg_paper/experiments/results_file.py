"""Results as JSON lines, earned by running tasks, and tables of their summaries."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from vmg.files import sync_folder
from vmg.scale import run_parallel
from vmg.training import Callback

__all__ = ["FORMATS", "Watch", "append", "mean_and_error", "read", "run", "typeset", "unwatched"]

try:
    import fcntl
except ImportError:  # Windows; there only one process may write
    fcntl = None  # type: ignore[assignment]


Record = dict[str, Any]


def read(path: Path) -> list[Record]:
    """All records of a results file; a last line that a kill cut short is left out."""
    if not path.exists():
        return []
    records = []
    *lines, last = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            records.append(json.loads(line))
        except ValueError as error:
            raise ValueError(f"{path}, line {number} is not JSON: {error}") from error
    return [*records, json.loads(last)] if _parses(last) else records


def append(path: Path, records: Iterable[Record]) -> None:
    """Add records, each on a line of its own; when this returns, they are on the disk.

    Nothing that was whole is written again: a last line that a kill cut short is cut off at the last newline, and one
    that only lacks its newline gets it. Several processes may append to one file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    new = not path.exists()
    data = "".join(json.dumps(record) + "\n" for record in records).encode()
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
    try:
        with _locked(descriptor):
            end = os.fstat(descriptor).st_size
            content = os.pread(descriptor, end, 0)
            start = content.rfind(b"\n") + 1
            if _parses(content[start:]):
                data = b"\n" + data
            else:
                end = start
                os.ftruncate(descriptor, end)
            _write_all(descriptor, data, end)
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
    if new:
        sync_folder(path.parent)


def _write_all(descriptor: int, data: bytes, start: int) -> None:
    """Write at ``start``; on a full disk the file becomes what it was."""
    place = start
    try:
        while data:
            written = os.pwrite(descriptor, data, place)
            data, place = data[written:], place + written
    except OSError:
        os.ftruncate(descriptor, start)
        raise


def _parses(line: bytes) -> bool:
    """Whether a line is a whole record; every record is an object, and no part of one is JSON."""
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


@contextlib.contextmanager
def _locked(descriptor: int) -> Iterator[None]:
    """Keep others from the file, where the system has locks; these end with the process."""
    if fcntl is not None:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    yield  # closing the file unlocks it


Watch = Callable[[str], AbstractContextManager[Callback]]
"""A label to a block in which training reports to the callback that it gives."""

Task = TypeVar("Task")


def unwatched(label: str) -> AbstractContextManager[Callback]:
    """Training that nobody hears of."""
    return nullcontext(_ignore)


def _ignore(progress: Any) -> None:
    return None


def run(
    execute: Callable[[Task, Watch], list[Record]],
    tasks: Sequence[Task],
    *,
    out: Path,
    jobs: int = 1,
    threads: int = 1,
    watch: Watch = unwatched,
) -> Iterator[tuple[Task, list[Record]]]:
    """Every task with its records, as soon as these are in the results file.

    Several ``jobs`` run in processes of their own, which nobody watches.
    """
    earned: Iterator[tuple[int, list[Record]]]
    if jobs == 1:
        earned = ((k, execute(task, partial(_numbered, watch, k, len(tasks)))) for k, task in enumerate(tasks))
    else:
        alone = partial(_unwatched_task, execute)
        earned = run_parallel(alone, tasks, n_jobs=jobs, threads=threads)
    for position, records in earned:
        append(out, records)
        yield tasks[position], records


def _numbered(watch: Watch, position: int, total: int, label: str) -> AbstractContextManager[Callback]:
    return watch(f"{label} ({position + 1}/{total})")


def _unwatched_task(execute: Callable[[Task, Watch], list[Record]], task: Task) -> list[Record]:
    return execute(task, unwatched)


FORMATS = ("markdown", "latex", "json")
LATEX = (("±", r"$\pm$"), ("%", r"\%"), ("−", "$-$"))


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """The mean and its standard error, which is 0 for a single value."""
    error = np.std(values, ddof=1) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return float(np.mean(values)), float(error)


def typeset(
    summary: Sequence[Record],
    header: Sequence[str],
    cells: Callable[[Record], Sequence[str]],
    form: str,
    *,
    n_words: int = 2,
) -> str:
    """A table in Markdown or LaTeX, whose first ``n_words`` columns are words, or the rows as JSON."""
    if form not in FORMATS:
        raise ValueError(f"format must be one of {FORMATS}; got {form!r}")
    if form == "json":
        return json.dumps(list(summary), indent=1)
    rows = [cells(row) for row in summary]
    if form == "markdown":
        return "\n".join(f"| {' | '.join(row)} |" for row in (header, ("---",) * len(header), *rows))
    body = [" & ".join(row) + r" \\" for row in (header, *rows)]
    for character, name in LATEX:
        body = [line.replace(character, name) for line in body]
    return "\n".join([rf"\begin{{tabular}}{{{'l' * n_words}{'r' * (len(header) - n_words)}}}", *body, r"\end{tabular}"])

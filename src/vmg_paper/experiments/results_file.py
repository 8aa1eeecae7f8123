"""Results as JSON lines: appended as they are earned, so that a killed run resumes where it was."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from vmg.files import sync_folder

try:
    import fcntl
except ImportError:  # Windows; there only one process may write
    fcntl = None  # type: ignore[assignment]

__all__ = ["append", "read"]

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

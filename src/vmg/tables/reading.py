"""The bytes of a table's file, unpacked up to a limit, so that no small file can fill the memory."""

from __future__ import annotations

import atexit
import gzip
import io
import os
import stat
import sys
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

from vmg.tables.wording import TableError

__all__ = ["MAX_BYTES", "MAX_UNPACKING", "TableBytes", "open_table", "spooled_input"]

MAX_BYTES = 2**32
"""Bytes of a table as text or Parquet, after unpacking; it takes several times as much memory."""

MAX_UNPACKING = 200
"""Bytes that one packed byte may become, once they are more than ``FREE_BYTES``; tables have 3 to 50."""

FREE_BYTES = 2**26
HEAD = 2**20  # bytes that are looked at before the rest is read
PACKED = b"\x1f\x8b"


class TableBytes(io.RawIOBase):
    """A readable stream that starts with ``head`` and ends in a TableError where it holds too much or no text.

    ``failure`` keeps that error for callers behind a parser that hides it.
    """

    def __init__(self, name: str, source: BinaryIO | gzip.GzipFile, packed_size: int | None) -> None:
        self._name, self._source, self._count = name, source, 0
        self._limit = MAX_BYTES
        if packed_size is not None:
            self._limit = min(MAX_BYTES, max(FREE_BYTES, MAX_UNPACKING * packed_size))
        self._packed_size, self.is_text = packed_size, False
        self.failure: TableError | None = None
        self.head = b""
        while len(self.head) < HEAD and (piece := self._take(HEAD - len(self.head))):
            self.head += piece
        self._ahead = self.head

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data, self._ahead = self._ahead[: len(buffer)], self._ahead[len(buffer) :]
        data = data or self._take(len(buffer))
        if self.is_text and b"\0" in data:
            self._fail(f"{self._name} is a binary file; expected CSV or Parquet")
        buffer[: len(data)] = data
        return len(data)

    def _take(self, size: int) -> bytes:
        try:
            data = self._source.read(size)
        except (OSError, EOFError, zlib.error) as error:
            verb = "read" if self._packed_size is None else "unpack"
            self._fail(f"cannot {verb} {self._name}: {getattr(error, 'strerror', None) or error}")
        self._count += len(data)
        if self._count > self._limit:
            what = f"{self._limit:,} bytes" + (
                "" if self._packed_size is None else f" unpacked from {self._packed_size:,}"
            )
            self._fail(f"{self._name} must have at most {what}; it has more")
        return data

    def _fail(self, message: str) -> None:
        self.failure = TableError(message)
        raise self.failure


def spooled_input() -> str:
    """A temporary file with all of standard input, which the system removes with the process; its path.

    A table is read twice where its encoding is not the first one tried, and a pipe can be read only once.
    """
    file = tempfile.NamedTemporaryFile(prefix="vmg-", suffix=".table")  # noqa: SIM115 - removed at the end
    size = 0
    while piece := sys.stdin.buffer.read(HEAD):
        size += len(piece)
        if size > MAX_BYTES:
            raise TableError(f"standard input must have at most {MAX_BYTES:,} bytes; it has more")
        file.write(piece)
    file.flush()
    atexit.register(file.close)
    return file.name


@contextmanager
def open_table(path: str | os.PathLike[str]) -> Iterator[TableBytes]:
    """The bytes of a file, unpacked where they are packed with gzip."""
    name = os.fspath(path)
    try:
        found = os.stat(path)
        if not (stat.S_ISREG(found.st_mode) or stat.S_ISFIFO(found.st_mode)):
            raise TableError(f"cannot read {name}: it is a folder or a device, not a file")
        file = open(path, "rb")  # noqa: SIM115 - closed below
    except FileNotFoundError as error:
        raise TableError(f"there is no file {name}") from error
    except TableError:
        raise
    except (OSError, ValueError) as error:
        raise TableError(f"cannot read {name}: {getattr(error, 'strerror', None) or error}") from error
    with file:
        if file.peek(2)[:2] != PACKED:
            yield TableBytes(name, file, None)
            return
        with gzip.GzipFile(fileobj=file) as unpacked:
            yield TableBytes(name, unpacked, found.st_size)

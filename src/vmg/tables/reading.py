"""The bytes of a table's file, unpacked up to a limit, so that no small file can fill the memory."""

from __future__ import annotations

import atexit
import codecs
import gzip
import io
import os
import stat
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

from vmg.tables.wording import TableError

__all__ = ["MAX_BYTES", "MAX_UNPACKING", "TableBytes", "open_table", "spooled"]

MAX_BYTES = 2**32
"""Bytes of a table as text or Parquet, after unpacking; it takes several times as much memory."""

MAX_UNPACKING = 200
"""Bytes that one packed byte may become, once they are more than ``FREE_BYTES``; tables have 3 to 50."""

FREE_BYTES = 2**26
HEAD = 2**20  # bytes that are looked at before the rest is read
PACKED = b"\x1f\x8b"


class TableBytes(io.RawIOBase):
    """A readable stream that starts with ``head`` and ends in a TableError where it holds too much or no text.

    With :meth:`set_encoding` it gives text in UTF-8 and counts its quotation marks. ``failure`` keeps its error for
    callers behind a parser that hides it.
    """

    def __init__(self, name: str, source: BinaryIO | gzip.GzipFile, packed_size: int | None, max_bytes: float) -> None:
        self._name, self._source, self._count = name, source, 0
        self._limit = max_bytes
        if packed_size is not None:
            self._limit = min(max_bytes, max(FREE_BYTES, MAX_UNPACKING * packed_size))
        self._packed_size, self._encoding, self.quotes = packed_size, "", 0
        self._decode: Callable[[bytes, bool], str] | None = None
        self.failure: Exception | None = None
        self.head = b""
        while len(self.head) < HEAD and (piece := self._take(HEAD - len(self.head))):
            self.head += piece
        self._ahead = memoryview(self.head)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        at_end = False
        while not self._ahead and not at_end:
            taken = self._take(max(len(buffer), HEAD))
            at_end = not taken
            self._ahead = self._as_utf8(taken, at_end)
        data, self._ahead = self._ahead[: len(buffer)], self._ahead[len(buffer) :]
        buffer[: len(data)] = data
        return len(data)

    def set_encoding(self, encoding: str) -> None:
        """Give the text in UTF-8, from its beginning."""
        self._encoding, self._decode = encoding, codecs.getincrementaldecoder(encoding)().decode
        self._ahead = self._as_utf8(self.head)

    def _as_utf8(self, data: bytes, at_end: bool = False) -> memoryview:
        if self._decode is not None:
            if self._encoding != "utf-16" and b"\0" in data:
                self._fail(f"{self._name} is a binary file; expected CSV or Parquet")
            try:
                data = self._decode(data, at_end).encode()
            except UnicodeDecodeError as error:
                self.failure = error
                raise
            self.quotes += data.count(b'"')
        return memoryview(data)

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


def spooled(source: BinaryIO, name: str) -> str:
    """A temporary file with all of a pipe, which the system removes with the process; its path.

    A table is read again where its encoding is not the first one tried, and a pipe can be read only once.
    """
    file = tempfile.NamedTemporaryFile(prefix="vmg-", suffix=".table")  # noqa: SIM115 - removed at the end
    size = 0
    while piece := source.read(HEAD):
        size += len(piece)
        if size > MAX_BYTES:
            raise TableError(f"{name} must have at most {MAX_BYTES:,} bytes; it has more")
        file.write(piece)
    file.flush()
    atexit.register(file.close)
    return file.name


@contextmanager
def open_table(path: str | os.PathLike[str], max_bytes: float | None = None) -> Iterator[TableBytes]:
    """The bytes of a file, unpacked where they are packed with gzip; ``max_bytes`` None: as many as fit in memory."""
    name, limit = os.fspath(path), MAX_BYTES if max_bytes is None else max_bytes
    try:
        status = os.stat(path)
        if not (stat.S_ISREG(status.st_mode) or stat.S_ISFIFO(status.st_mode)):
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
            yield TableBytes(name, file, None, limit)
            return
        with gzip.GzipFile(fileobj=file) as unpacked:
            yield TableBytes(name, unpacked, status.st_size, limit)

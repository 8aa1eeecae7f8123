"""Files that are written whole or not at all, and runs that can be stopped and resumed.

A :class:`Run` states what the results depend on: digests of the data, options, the version. Files on disk state the run
that they belong to, and another run is refused. A folder of results has a note with a digest of every finished part.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # Windows, which has no such locks
    fcntl = None  # type: ignore[assignment]

__all__ = [
    *("Run", "RunError", "RunFolder", "append_lines", "check_output", "digest_file", "file_stamp", "locked"),
    *("private_folder", "read_lines", "remove_private_folders", "replacing", "same_file", "sync_folder"),
]

NAME_PART = 60  # characters of the old name in the temporary one, which must not become too long for the disk
TEMPORARY = re.compile(r"\.[0-9a-f]{8}\..+")  # names of temporary files
NOTE = "_run.jsonl"  # in a run's folder; readers of Parquet pass over names that start with an underscore
SHOWN = 40  # characters of a setting in a message; longer ones are digests and lists
KINDS = {"d": "a folder", "c": "a device", "b": "a device", "p": "a FIFO", "s": "a socket"}  # by letters of `ls -l`


def check_output(path: str | os.PathLike[str]) -> os.stat_result | None:
    """Status of the file at ``path``, None if there is none; an OSError says why it cannot be replaced."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    if kind := KINDS.get(stat.filemode(status.st_mode)[0]):
        raise OSError(errno.EINVAL, f"it is {kind}, not a file")
    if not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, "it may not be written to")
    return status


def same_file(a: str | os.PathLike[str], b: str | os.PathLike[str]) -> bool:
    """Whether two paths lead to one file, through links or other spellings, also where there is none yet."""
    with suppress(OSError):
        return os.path.realpath(a) == os.path.realpath(b) or os.path.samefile(a, b)
    return False


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary path beside ``path`` that takes its place once the block has written it without an error.

    Until then a file at ``path`` stays as it is; after an error nothing is left behind. A link keeps pointing where it
    did, and the new file is as private as the old one, from its first byte on.
    """
    target = Path(os.path.realpath(path))
    old = check_output(target)
    temporary = target.with_name(f".{secrets.token_hex(4)}.{target.name[-NAME_PART:]}")  # some writers look at endings
    os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666 if old is None else 0o600))
    try:
        if old is not None:
            if hasattr(os, "chown"):
                with suppress(PermissionError):
                    os.chown(temporary, old.st_uid, old.st_gid)
            os.chmod(temporary, stat.S_IMODE(old.st_mode))
        yield temporary
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, target)
        sync_folder(target.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def private_folder() -> tempfile.TemporaryDirectory[str]:
    """A temporary folder that is gone after a with block; :func:`remove_private_folders` removes it before."""
    return tempfile.TemporaryDirectory(prefix=f"vmg-{os.getpid()}-", ignore_cleanup_errors=True)


def remove_private_folders() -> None:
    """Remove all temporary folders of a process that is about to end without leaving its blocks."""
    for folder in Path(tempfile.gettempdir()).glob(f"vmg-{os.getpid()}-*"):
        shutil.rmtree(folder, ignore_errors=True)


def sync_folder(folder: Path) -> None:
    """Make sure that a power cut does not take back the names in a folder; nothing where the system cannot."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def locked(path: str | os.PathLike[str], *, wait: bool = True) -> Iterator[None]:
    """Keep other processes that lock the same file or folder waiting until the block ends.

    A RunError where ``wait`` is False and another process has it. A file that is replaced meanwhile is locked again.
    """
    descriptor = -1
    try:
        while fcntl is not None:
            descriptor = os.open(path, os.O_RDONLY)
            with suppress(OSError):  # of file systems without locks
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
                except BlockingIOError as error:
                    why = "is in use by another process; try again when it is done"
                    raise RunError(f"{os.fspath(path)} {why}") from error
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                break
            os.close(descriptor)
            descriptor = -1
        yield
    finally:
        if descriptor >= 0:
            os.close(descriptor)  # which unlocks it


def digest_file(path: str | os.PathLike[str]) -> str:
    """SHA-256 of the contents of a file."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()


def file_stamp(path: str | os.PathLike[str]) -> tuple[int, ...]:
    """Numbers that change when a file is replaced or written to; empty where there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return ()
    return status.st_ino, status.st_mtime_ns, status.st_size


# -- lines of JSON ----------------------------------------------------------------------------------------------------


def read_lines(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """All records of a file with one JSON object a line; a last line that a kill cut short is left out."""
    try:
        *lines, last = Path(path).read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    records = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            records.append(_record(line))
            if records[-1] is None:
                raise ValueError(f"{os.fspath(path)}, line {number} is not a JSON object")
    return [record for record in (*records, _record(last)) if record is not None]


def append_lines(path: str | os.PathLike[str], records: Iterable[Mapping[str, Any]]) -> None:
    """Add records, each on a line of its own; when this returns, they are on the disk.

    A last line that a kill cut short is cut off, and one that only lacks its newline gets it. Several processes may
    append to one file. On a full disk the file becomes what it was.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    new = not path.exists()
    data = "".join(json.dumps(record) + "\n" for record in records).encode()
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
    try:
        if fcntl is not None:
            fcntl.flock(descriptor, fcntl.LOCK_EX)  # closing the file unlocks it
        content = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
        end = content.rfind(b"\n") + 1
        if _record(content[end:]) is not None:
            end, data = len(content), b"\n" + data
        os.ftruncate(descriptor, end)
        place = end
        try:
            while data:
                written = os.pwrite(descriptor, data, place)
                data, place = data[written:], place + written
            os.fsync(descriptor)
        except OSError:
            os.ftruncate(descriptor, end)
            if new:
                path.unlink()
            raise
    finally:
        os.close(descriptor)
    if new:
        sync_folder(path.parent)


def _record(line: bytes) -> dict[str, Any] | None:
    """The record on a line, None where it is not whole; every record is an object, and no part of one is JSON."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


# -- resumable runs ---------------------------------------------------------------------------------------------------


class RunError(ValueError):
    """Files that belong to another run, are damaged, or are in use by another process."""


@dataclass(frozen=True)
class Run:
    """The settings that the results of a run depend on, by name; JSON holds their values."""

    settings: Mapping[str, Any]

    def to_document(self) -> dict[str, Any]:
        """The settings as JSON gives them back."""
        document: dict[str, Any] = json.loads(json.dumps(self.settings, default=str))
        return document

    def require_same(self, kept: Any, place: str | os.PathLike[str]) -> None:
        """Raise a RunError where ``kept``, the settings that are stated at ``place``, are those of another run."""
        for name, value in self.to_document().items():
            other = kept.get(name) if isinstance(kept, dict) else None
            if other != value:
                short = max(len(str(value)), len(str(other))) <= SHOWN
                asked, got = (f"{name} = {value}", other) if short else (f"the same {name}", "another")
                hint = "Give another path, or remove it to start again."
                raise RunError(f"{os.fspath(place)} must be of a run with {asked}; got {got}. {hint}")

    def read(self, path: str | os.PathLike[str], *needed: str) -> list[dict[str, Any]] | None:
        """Records after the settings in a file of JSON lines; None where there is none, an error where it is another's.

        ``needed`` are keys that every record must have.
        """
        try:
            lines = read_lines(path)
            if not all(record.keys() >= set(needed) for record in lines[1:]):
                raise ValueError("a record lacks a key")
        except (OSError, ValueError) as error:
            raise RunError(f"{os.fspath(path)} is damaged; give another path, or remove it to start again") from error
        if not lines:
            return None
        self.require_same(lines[0], path)
        return lines[1:]

    @contextmanager
    def claim(self, folder: str | os.PathLike[str]) -> Iterator[RunFolder]:
        """Take a folder for this run until the block ends; a RunError where it is another's or in use."""
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        with locked(path, wait=False):
            parts = self.read(path / NOTE, "name")
            if parts is None:
                others = sorted(entry.name for entry in path.iterdir() if not TEMPORARY.fullmatch(entry.name))
                if others:
                    raise RunError(f"{path} must be empty or of this run; it has {others[0]}. Give another path.")
                with replacing(path / NOTE) as temporary:
                    temporary.write_text(json.dumps(self.to_document()) + "\n", encoding="utf-8")
            for left in path.rglob(".*"):
                if TEMPORARY.fullmatch(left.name):  # of a run that was killed
                    left.unlink()
            yield RunFolder(path, {part["name"]: part for part in parts or []})


@dataclass(frozen=True)
class RunFolder:
    """The folder of a run, and the notes on parts that were finished at some time, by their names."""

    path: Path
    parts: dict[str, dict[str, Any]]

    def source_of(self, name: str) -> str | None:
        """The digest of the data that a part was made from; None where it is not there as it was written."""
        part, path = self.parts.get(name), self.path / name
        if part is None or not path.is_file() or part.get("digest") != digest_file(path):
            return None
        return str(part.get("source"))

    def add(self, name: str, source: str = "") -> None:
        """Note a part that was written just now."""
        self.parts[name] = {"name": name, "source": source, "digest": digest_file(self.path / name)}
        append_lines(self.path / NOTE, [self.parts[name]])

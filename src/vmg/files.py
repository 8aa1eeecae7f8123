"""Files that are written whole or not at all, and only where a file belongs."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["check_output", "replacing", "same_file", "sync_folder"]

NAME_PART = 60  # characters of the old name in the temporary one, which must not become too long for the disk
KINDS = {
    stat.S_ISDIR: "a folder",
    stat.S_ISCHR: "a device",
    stat.S_ISBLK: "a device",
    stat.S_ISFIFO: "a FIFO",
    stat.S_ISSOCK: "a socket",
}


def check_output(path: str | os.PathLike[str]) -> os.stat_result | None:
    """What is at ``path`` now, None if nothing; an OSError says why it cannot be replaced."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    for is_kind, name in KINDS.items():
        if is_kind(found.st_mode):
            raise OSError(errno.EINVAL, f"it is {name}, not a file")
    if not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, "it may not be written to")
    return found


def same_file(a: str | os.PathLike[str], b: str | os.PathLike[str]) -> bool:
    """Whether two paths lead to one file, through links or other spellings, also where there is none yet."""
    if os.path.realpath(a) == os.path.realpath(b):
        return True
    try:
        return os.path.samefile(a, b)
    except OSError:
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


def sync_folder(folder: Path) -> None:
    """Make sure that a power cut does not take back the names in a folder; nothing where the system cannot."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

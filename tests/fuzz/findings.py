"""What a campaign looks for, and the limits of every process that takes part."""

import resource
from pathlib import Path

TIME_LIMIT = 20.0  # seconds of computing, which other programs on the machine do not lengthen
WAIT_LIMIT = 600.0  # seconds of a clock on the wall
MEMORY_LIMIT = 2**30  # bytes beyond what the libraries take


class Finding(Exception):
    """A case that ended as none may."""


def memory_in_use() -> int:
    """Bytes of address space that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


class Hang(BaseException):
    """A case that took too long; no library takes it for an error of its own."""

"""What a campaign looks for, and the limits of every process that takes part."""

import os
import resource
import signal
import time
from pathlib import Path

TIME_LIMIT = 20.0  # seconds of computing, which other programs on the machine do not lengthen
WAIT_LIMIT = 600.0  # seconds of a clock on the wall
MEMORY_LIMIT = 2**30  # bytes beyond what the libraries take


class Finding(Exception):
    """A case that ended as none may."""


def memory_in_use() -> int:
    """Bytes of address space that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def limit_process(seconds: float = TIME_LIMIT) -> None:
    """Limit computing and memory of this process and of every process that it starts, and lead a group of them."""
    os.setsid()
    resource.setrlimit(resource.RLIMIT_CPU, (int(seconds), resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_AS, (memory_in_use() + MEMORY_LIMIT, resource.RLIM_INFINITY))


def end_group(leader: int, grace: float = 0.0) -> bool:
    """Kill what is left of a group of processes after so many seconds; whether there was anything to kill."""
    end = time.monotonic() + grace
    while _alive(leader) and time.monotonic() < end:
        time.sleep(0.02)
    left = _alive(leader)
    if left:
        os.killpg(leader, signal.SIGKILL)
        while _alive(leader):
            time.sleep(0.02)
    return left


def _alive(leader: int) -> bool:
    """Whether a group has processes that have not ended; those that nobody has waited for have."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, group = stat.read_text().rpartition(")")[2].split()[:3]
        except OSError:  # it has ended meanwhile
            continue
        if int(group) == leader and state not in "ZX":
            return True
    return False


class Hang(BaseException):
    """A case that took too long; no library takes it for an error of its own."""

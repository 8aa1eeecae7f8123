"""What the command ``vmg`` starts with: it answers Ctrl-C while everything else is still being imported."""

from __future__ import annotations

import os
import signal
import sys

__all__ = ["main"]

INTERRUPTED = 130


def main() -> None:
    """Import the command line and run it."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _leave)
    from contextlib import suppress

    from vmg.cli import main as run  # takes a second or two; an exception in its midst would print a traceback

    with suppress(ModuleNotFoundError):  # run gives the hint itself
        import vmg.cli.app  # noqa: F401
    signal.signal(signal.SIGINT, before)
    run()


def _leave(number: int, frame: object) -> None:
    """Say so and end at once; there is nothing to tidy up yet."""
    os.write(sys.stderr.fileno(), b"error: interrupted\n")
    os._exit(INTERRUPTED)

"""The command ``vmg``, which ``python -m vmg`` and ``torchrun -m vmg`` start too.

It answers Ctrl-C while the command line is still being imported.
"""

from __future__ import annotations

import io
import os
import signal
import sys

__all__ = ["main"]

INTERRUPTED, TERMINATED = 130, 143


def main() -> None:
    """Import the command line, run it and exit with its code."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _leave)
    try:
        from vmg.cli.app import run  # takes a second or two; an exception in its midst would print a traceback
    except ModuleNotFoundError as error:
        print(f"error: this needs the package {error.name}; install it with: pip install 'vmg[app]'", file=sys.stderr)
        sys.exit(2)
    finally:
        signal.signal(signal.SIGINT, before)
    if "TORCHELASTIC_RUN_ID" not in os.environ:  # a process that waits for others must end at once
        signal.signal(signal.SIGTERM, _terminate)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names may have letters that a terminal's encoding has not
    sys.exit(run(sys.argv[1:]))


def _leave(number: int, frame: object) -> None:
    """Report the interruption and end at once; there is nothing to tidy up yet."""
    os.write(sys.stderr.fileno(), b"error: interrupted\n")
    os._exit(INTERRUPTED)


def _terminate(number: int, frame: object) -> None:
    """Remove temporary files, end the processes that were started, and end at once.

    An exception would not do: C++ code that has called Python aborts the process where it is thrown.
    """
    from multiprocessing import active_children

    from vmg.files import remove_private_folders

    remove_private_folders()
    for process in active_children():
        process.terminate()
    os._exit(TERMINATED)


if __name__ == "__main__":
    main()

"""The ``vmg`` command."""

from __future__ import annotations

import io
import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line and exit with its code."""
    try:
        from vmg.cli.app import run  # imported here so that a missing package gets its hint
    except ModuleNotFoundError as error:
        print(f"error: this needs the package {error.name}; install it with: pip install 'vmg[app]'", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names may have letters that a terminal's encoding has not
    sys.exit(run(sys.argv[1:]))

"""The ``vmg`` command."""

from __future__ import annotations

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
    sys.exit(run(sys.argv[1:]))

"""``vmg demo``, whose parts are loaded when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vmg.cli.options import DebugOption, QuietOption

__all__ = ["demo"]


def demo(
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FOLDER", help="Where the figure and the model go.")
    ] = Path("demo"),
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Fit the toy problem of the paper's Figure 1 and scikit-learn's diabetes table; some seconds."""
    from vmg.cli.demo import run_demo

    run_demo(out, quiet=quiet)

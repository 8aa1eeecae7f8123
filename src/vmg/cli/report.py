"""``vmg report``: one page about a model and the rows of a table."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from vmg.cli.options import DataArgument, DebugOption, ModelArgument, QuietOption
from vmg.cli.output import say, waiting
from vmg.cli.paths import check_output, load_both, prints

__all__ = ["report"]


def report(
    model: ModelArgument,
    data: DataArgument,
    out: Annotated[
        str, typer.Option("--out", "-o", metavar="FILE", help="Where the page goes; - prints it.")
    ] = "report.html",
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Write one self-contained HTML page about a model and the rows of a table."""
    from vmg.report import render_report, write_report

    path = None if prints(out) else check_output(Path(out), model, data)
    fitted, frame = load_both(model, data, quiet)
    if path is None:
        sys.stdout.write(render_report(fitted, frame))
        return
    with waiting("Writing the report", quiet=quiet):
        write_report(fitted, frame, path)
    if not quiet:
        say(f"Report written to {path}.")

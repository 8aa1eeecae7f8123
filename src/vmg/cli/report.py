"""``vmg report``: one page about a model and the rows of a table."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from vmg.cli import options
from vmg.cli.data import check_output, load_both, prints
from vmg.cli.output import say, say_aside, waiting

__all__ = ["report"]


def report(
    model: options.ModelArgument,
    data: options.DataArgument,
    out: Annotated[str, options.output(metavar="FILE", help="Where the page goes; - prints it.")] = "report.html",
    group: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The group of a fleet that the page is about.", show_default="the largest"),
    ] = None,
    quiet: options.QuietOption = False,
    debug: options.DebugOption = False,
) -> None:
    """Write one self-contained HTML page about a model and the rows of a table; of a fleet, about one of its groups."""
    from vmg.estimators import TableModel
    from vmg.report import render_report, write_report
    from vmg.tables.cells import count

    path = None if prints(out) else check_output(Path(out), model, data)
    fitted, frame = load_both(model, data, quiet)
    if isinstance(fitted, TableModel):
        options.refuse_options("needs a fleet", group=group)
    else:
        group, fitted, frame = fitted.rows_of(frame, group)
        if not quiet:
            say_aside(f"The page is about the group '{group}', {count(len(frame), 'row')}; --group names another.")
    if path is None:
        sys.stdout.write(render_report(fitted, frame))
        return
    with waiting("Writing the report", quiet=quiet):
        write_report(fitted, frame, path)
    if not quiet:
        say(f"Report written to {path}.")

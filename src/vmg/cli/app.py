"""The commands, each of which is a file beside this one, and how one of them is run.

A command imports what it needs when it runs, so that ``vmg --help`` waits for no library of numbers.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated

import typer

import vmg
from vmg.cli.bench import bench_command
from vmg.cli.errors import INTERRUPTED, UNEXPECTED, explain
from vmg.cli.evaluate import evaluate
from vmg.cli.first_look import demo
from vmg.cli.fit import fit
from vmg.cli.inspect import inspect
from vmg.cli.options import FIRST_LOOK, PAPER, SPEED, TABLE
from vmg.cli.output import print_error
from vmg.cli.predict import predict
from vmg.cli.report import report
from vmg.cli.reproduce import reproduce
from vmg.cli.update import update

__all__ = ["app", "run"]

app = typer.Typer(
    name="vmg",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="Predictions from tables, with honest intervals: Bayesian neural networks that know what they do not know.",
    epilog="""Examples:
- `vmg demo`
- `vmg inspect houses.csv --target price`
- `vmg fit houses.csv --target price`
- `vmg evaluate houses.vmg test.csv`
- `vmg predict houses.vmg new.csv --out predictions.csv --coverage 0.95`
- `vmg report houses.vmg test.csv --out report.html`""",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"vmg {vmg.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options before a command."""


# in the order of the help
app.command(rich_help_panel=TABLE, epilog="Example: `vmg inspect houses.csv --target price`")(inspect)
app.command(rich_help_panel=TABLE, epilog="Example: `vmg fit houses.csv --target price --conformal 0.2`")(fit)
app.command(
    rich_help_panel=TABLE, epilog="Example: `vmg predict houses.vmg new.csv --out predictions.csv --coverage 0.95`"
)(predict)
app.command(rich_help_panel=TABLE, epilog="Example: `vmg evaluate houses.vmg test.csv`")(evaluate)
app.command(rich_help_panel=TABLE, epilog="Example: `vmg update houses.vmg new.parquet`")(update)
app.command(rich_help_panel=TABLE, epilog="Example: `vmg report houses.vmg test.csv --out report.html`")(report)
app.command(rich_help_panel=FIRST_LOOK)(demo)
app.command("bench", rich_help_panel=SPEED, epilog="Example: `vmg bench step predict`")(bench_command)
app.command(
    rich_help_panel=PAPER,
    add_help_option=False,  # the experiments have help of their own
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)(reproduce)


def run(arguments: Sequence[str]) -> int:
    """Run one command; returns the exit code: 0, 2 for a user's mistake, 1 for the unexpected, 130 for Ctrl-C."""
    try:
        code = app(list(arguments) or ["--help"], prog_name="vmg", standalone_mode=False)
        sys.stdout.flush()  # a full disk behind it is an error of this command, not of Python's end
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except BrokenPipeError:  # whoever read has gone, as head does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return UNEXPECTED
    except Exception as error:
        if "--debug" in arguments:
            traceback.print_exc()
        message, code = explain(error)
        if message:  # a group of commands without one has shown its help already
            print_error(message)
        return code
    if code == INTERRUPTED:  # newer versions of typer turn Ctrl-C into this code themselves
        print_error("interrupted")
    return code or 0

"""The commands, each of which is a file beside this one, and how one of them is run.

A command imports what it needs when it runs, so that ``vmg --help`` waits for no library of numbers.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

import vmg
from vmg.cli.compare import compare
from vmg.cli.demo import demo
from vmg.cli.evaluate import evaluate
from vmg.cli.fit import fit
from vmg.cli.inspect import inspect
from vmg.cli.options import FIRST_LOOK, PAPER, TABLE
from vmg.cli.output import print_error
from vmg.cli.predict import predict
from vmg.cli.report import report
from vmg.cli.update import update

__all__ = ["app", "run"]

UsageError: Any = typer.BadParameter.__base__  # typer's own class or, in older versions, click's
UNEXPECTED, MISTAKE, INTERRUPTED = 1, 2, 130  # exit codes

app = typer.Typer(
    name="vmg",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="Predictions from tables, with honest intervals: Bayesian neural networks that know what they do not know.",
    epilog="Examples: `vmg demo`, `vmg inspect houses.csv --target price`, `vmg fit houses.csv --target price`.",
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


EXAMPLES: dict[Callable[..., None], str] = {  # of each command on a table, in the order of the help
    inspect: "houses.csv --target price",
    fit: "houses.csv --target price --conformal 0.2",
    compare: "houses.csv --target price --with gp",
    predict: "houses.vmg new.csv --out predictions.csv --coverage 0.95",
    evaluate: "houses.vmg test.csv",
    update: "houses.vmg new.parquet",
    report: "houses.vmg test.csv --out report.html",
}
for command, example in EXAMPLES.items():
    app.command(rich_help_panel=TABLE, epilog=f"Example: `vmg {command.__name__} {example}`")(command)
app.command(rich_help_panel=FIRST_LOOK)(demo)


@app.command(
    rich_help_panel=PAPER,
    add_help_option=False,  # the experiments have help of their own
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def reproduce(context: typer.Context) -> None:
    """Run the paper's experiments and print its figures beside ours."""
    from vmg_paper.cli import reproduce as experiments

    if code := experiments(list(context.args), prog_name="vmg reproduce", standalone_mode=False):
        raise typer.Exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run one command; returns the exit code: 0, 2 for a user's mistake, 1 for the unexpected, 130 for Ctrl-C."""
    if sys.stderr is None:  # closed by whoever started the command
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    if sys.stdout is None:
        print_error("standard output is closed; > /dev/null throws it away")
        return MISTAKE
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
        message, code = _explain(error)
        if message:  # a group of commands without one has shown its help already
            print_error(message)
        return code
    if code == INTERRUPTED:  # newer versions of typer turn Ctrl-C into this code themselves
        print_error("interrupted")
    return code or 0


def _explain(error: Exception) -> tuple[str, int]:
    """One line about an error, and the exit code."""
    if isinstance(error, UsageError):
        return error.format_message(), MISTAKE
    if isinstance(error, OSError):
        place = "" if error.filename is None else f"{error.filename}: "
        return f"{place}{error.strerror or error}", MISTAKE
    if isinstance(error, ModuleNotFoundError):
        return f"this needs the package {error.name}; install it with: pip install 'vmg[app]'", MISTAKE
    from vmg.files import RunError
    from vmg.model_file import ModelFileError
    from vmg.prediction.conformal import CoverageError  # these at last: a mistyped option needs no PyTorch
    from vmg.tables import TableError
    from vmg.training import TrainingError

    if isinstance(error, TableError | ModelFileError | RunError | CoverageError | TrainingError):
        return str(error), MISTAKE
    return f"{type(error).__name__}: {error} (add --debug for the traceback)", UNEXPECTED

"""Arguments and options that several commands share, each stated once, and what they mean for an estimator."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from enum import Enum
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

if TYPE_CHECKING:
    from vmg.tables.columns import TableChoices
    from vmg.tables.inputs import Task

__all__ = [
    *("FIRST_LOOK", "PAPER", "TABLE", "CoverageOption", "DataArgument", "DatasetArgument", "DebugOption"),
    *("DecimalOption", "JobsOption", "JsonOption", "ModelArgument", "Preset", "QuietOption", "SeedOption"),
    *("TargetOption", "TaskChoice", "TaskOption", "asked_task", "column", "engine", "estimator_options", "network"),
    *("output", "reads_table", "refuse_options", "require_likelihood", "scored", "split_names"),
]

TABLE, FIRST_LOOK, PAPER = "Your table", "A first look", "The paper"  # headings of the commands

network = partial(typer.Option, rich_help_panel="Network and training")  # options under a heading of the help
scored = partial(typer.Option, rich_help_panel="Score on held-out rows")
engine = partial(typer.Option, rich_help_panel="Large data")
column = partial(typer.Option, metavar="COLUMN")
output = partial(typer.Option, "--out", "-o")
_reading = partial(typer.Option, rich_help_panel="How the table is read")
_printed = partial(typer.Option, rich_help_panel="Output")

TaskChoice = Enum("TaskChoice", {"auto": "auto", "regression": "regression", "classification": "classification"})
Preset = Enum("Preset", {"fast": "fast", "default": "default", "best": "best"})
PRESETS: dict[str, dict[str, Any]] = {
    "fast": {"n_members": 4, "max_iter": 200},  # a look at a table: a third of the members, and half of the steps
    "default": {},  # parameters follow the table
    "best": {"n_members": 24, "n_iter_no_change": 12},  # twice the members, and twice the patience
}


def _open_share(value: float) -> float:
    if not 0 < value < 1:
        raise typer.BadParameter(f"must be between 0 and 1, such as 0.9; got {value:g}")
    return value


DataArgument = Annotated[Path, typer.Argument(metavar="DATA", help="A table: CSV (also .gz) or Parquet.")]
DatasetArgument = Annotated[
    str,
    typer.Argument(
        metavar="DATA",
        help="A table: CSV (also .gz) or Parquet. Or a dataset: a folder of Parquet files, a pattern such as "
        "'sales/*.parquet', or an address such as s3://bucket/sales.",
    ),
]
ModelArgument = Annotated[Path, typer.Argument(metavar="MODEL", help="A model that `vmg fit` wrote.")]
TargetOption = Annotated[str, typer.Option("--target", "-t", metavar="COLUMN", help="The column to predict.")]
TaskOption = Annotated[
    TaskChoice, typer.Option(metavar="TASK", help="What the target is: auto, regression or classification.")
]
CoverageOption = Annotated[
    float, typer.Option(metavar="SHARE", callback=_open_share, help="Probability that an interval holds the truth.")
]
SeedOption = Annotated[int, network(metavar="N", min=0, max=2**32 - 1, help="Same seed and table, same model.")]
JobsOption = Annotated[int, engine("--jobs", metavar="N", help="Processes at once; -1 takes all cores.")]
JsonOption = Annotated[bool, _printed("--json", help="Print one JSON document and nothing else.")]
QuietOption = Annotated[bool, _printed("--quiet", "-q", help="Print nothing but errors.")]
DebugOption = Annotated[bool, _printed("--debug", expose_value=False, help="Show the traceback of an error.")]
DecimalOption = Annotated[
    str | None, _reading(metavar="MARK", help="The decimal mark, . or , in all columns.", show_default="detected")
]


def split_names(given: list[str] | None) -> list[str]:
    """Names of options that come several times, or once with commas between."""
    return [name.strip() for text in given or [] for name in text.split(",") if name.strip()]


def refuse_options(why: str, **given: object) -> None:
    """Raise a usage error where an option was given that the command cannot follow; names are those of parameters."""
    for name, value in given.items():
        if value:
            raise typer.BadParameter(why, param_hint=f"--{name.replace('_', '-')}")


# -- how a table is read ----------------------------------------------------------------------------------------------

COLUMNS = "COLUMN,..."


def _make_choices(
    categorical: Annotated[
        list[str] | None, _reading(metavar=COLUMNS, help="Columns whose values are names, not amounts.")
    ] = None,
    ignore: Annotated[list[str] | None, _reading(metavar=COLUMNS, help="Columns to leave out.")] = None,
    date_format: Annotated[
        list[str] | None,
        _reading(metavar="[COLUMN=]FORMAT", help="How dates are written, such as %d/%m/%Y, or sold=%d/%m/%Y for one."),
    ] = None,
    decimal: DecimalOption = None,
    na: Annotated[
        list[str] | None,
        _reading(metavar="WORD,...", help="Words that mean a missing cell.", show_default="NA, ?, - and the like"),
    ] = None,
    no_header: Annotated[
        bool, _reading("--no-header", help="The first line is a row; columns are called 'column 1', 'column 2', ...")
    ] = False,
) -> TableChoices:
    """Choices about the table from the options."""
    from vmg.tables.columns import TableChoices

    formats = {}
    for text in date_format or []:
        name, sign, form = text.partition("=")
        formats[name if sign else ""] = form if sign else text
    return TableChoices.of(
        categorical=split_names(categorical),
        ignore=split_names(ignore),
        date_formats=formats,
        decimal=decimal,
        na_values=None if na is None else tuple(split_names(na)),
        header=not no_header,
    )


def reads_table(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of how a table is read, in the place of its parameter ``choices``."""
    unknown = {"TableChoices": Any}  # imported when a command runs
    own, reading = (inspect.signature(one, eval_str=True, locals=unknown) for one in (command, _make_choices))

    @wraps(command)
    def run(**given: Any) -> None:
        from vmg.cli.data import has_types

        if has_types(str(given["data"])):
            refuse_options(
                "is for text files; others have types and names", na=given["na"], no_header=given["no_header"]
            )
        command(choices=_make_choices(**{name: given.pop(name) for name in reading.parameters}), **given)

    parameters: list[inspect.Parameter] = []
    for name, parameter in own.parameters.items():
        parameters += reading.parameters.values() if name == "choices" else [parameter]
    run.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


# -- what is fitted ---------------------------------------------------------------------------------------------------


def asked_task(task: Enum) -> Task | None:
    """The task that --task names; None where it is to be found out."""
    return None if task.value == "auto" else cast("Task", task.value)


def estimator_options(preset: Enum, seed: int, **asked: Any) -> dict[str, Any]:
    """Parameters of the estimator: those of the preset, and on top what was asked for and is not None."""
    given = {name: value for name, value in asked.items() if value is not None}
    return {"random_state": seed, **PRESETS[preset.value], **given}


def require_likelihood(name: str, task: str | None) -> None:
    """Raise a usage error where there is no such likelihood of one column, or the task has none."""
    if name == "auto":
        return
    from vmg.likelihoods.families import LIKELIHOODS

    known, why = [key for key, likelihood in LIKELIHOODS.items() if not likelihood.paired], ""
    if name in LIKELIHOODS and name not in known:
        why = f"{name} takes two numbers a row; use TableRegressor(likelihood={name!r}) in Python"
    elif name not in known:
        why = f"must be one of auto, {', '.join(known)}; got {name}"
    elif task == "classification":
        why = "is for numbers; the task is classification"
    if why:
        raise typer.BadParameter(why, param_hint="--likelihood")

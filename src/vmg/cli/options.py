"""Arguments and options that several commands share, each stated once, and what they mean for an estimator."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from enum import Enum
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from vmg.tables.choices import TableChoices

__all__ = [
    "ENGINE",
    "FIRST_LOOK",
    "NETWORK",
    "PAPER",
    "TABLE",
    "CoverageOption",
    "DataArgument",
    "DatasetArgument",
    "DebugOption",
    "DecimalOption",
    "JobsOption",
    "JsonOption",
    "ModelArgument",
    "Preset",
    "QuietOption",
    "TaskChoice",
    "TaskOption",
    "preset_options",
    "reads_table",
    "refuse_options",
    "require_likelihood",
    "split_names",
]

TABLE, NETWORK, OUTPUT = "Your table", "Network and training", "Output"  # headings of the help
FIRST_LOOK, PAPER, ENGINE, READING = "A first look", "The paper", "Large data", "How the table is read"


class TaskChoice(str, Enum):
    """Values of --task."""

    auto = "auto"
    regression = "regression"
    classification = "classification"


def _open_share(value: float) -> float:
    if not 0 < value < 1:
        raise typer.BadParameter(f"must be between 0 and 1, such as 0.9; got {value:g}")
    return value


DataArgument = Annotated[Path, typer.Argument(metavar="DATA", help="A table: CSV (also .gz) or Parquet.")]
DatasetArgument = Annotated[
    str,
    typer.Argument(
        metavar="DATA",
        help="A table: CSV (also .gz) or Parquet. Or a dataset: a folder of Parquet or Arrow files, a pattern such as "
        "'sales/*.parquet', or an address such as s3://bucket/sales.",
    ),
]
ModelArgument = Annotated[Path, typer.Argument(metavar="MODEL", help="A model that `vmg fit` wrote.")]
TaskOption = Annotated[
    TaskChoice, typer.Option(metavar="TASK", help="What the target is: auto, regression or classification.")
]
CoverageOption = Annotated[
    float, typer.Option(metavar="SHARE", callback=_open_share, help="Probability that an interval holds the truth.")
]
JobsOption = Annotated[
    int, typer.Option("--jobs", metavar="N", help="Processes at once; -1 takes all cores.", rich_help_panel=ENGINE)
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON document and nothing else.", rich_help_panel=OUTPUT)
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.", rich_help_panel=OUTPUT)]
DebugOption = Annotated[
    bool,
    typer.Option("--debug", expose_value=False, help="Show the traceback of an error.", rich_help_panel=OUTPUT),
]
DecimalOption = Annotated[
    str | None,
    typer.Option(
        metavar="MARK",
        help="The decimal mark, . or , in all columns.",
        show_default="detected",
        rich_help_panel=READING,
    ),
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


def _make_choices(
    types: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.toml",
            help='Kinds of columns: lines such as zip = "category" or note = "ignore" under [columns].',
            rich_help_panel=READING,
        ),
    ] = None,
    categorical: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN,...", help="Columns whose values are names, not amounts.", rich_help_panel=READING
        ),
    ] = None,
    ignore: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN,...", help="Columns to leave out.", rich_help_panel=READING)
    ] = None,
    date_format: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[COLUMN=]FORMAT",
            help="How dates are written, such as %d/%m/%Y, or sold=%d/%m/%Y for one column.",
            rich_help_panel=READING,
        ),
    ] = None,
    decimal: DecimalOption = None,
    na: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WORD,...",
            help="Words that mean a missing cell, as an empty one does.",
            show_default="NA, ?, - and the like",
            rich_help_panel=READING,
        ),
    ] = None,
    no_header: Annotated[
        bool,
        typer.Option(
            "--no-header",
            help="The first line is a row; columns are called 'column 1', 'column 2', ...",
            rich_help_panel=READING,
        ),
    ] = False,
) -> TableChoices:
    """Choices about the table from the options, which override the file of types."""
    from vmg.tables.choices import TableChoices, read_choices

    formats = {}
    for text in date_format or []:
        name, sign, form = text.partition("=")
        formats[name if sign else ""] = form if sign else text
    choices = TableChoices() if types is None else read_choices(types)
    return choices.changed(
        categorical=split_names(categorical),
        ignore=split_names(ignore),
        date_formats=formats,
        decimal=decimal,
        na_values=None if na is None else split_names(na),
        header=False if no_header else None,
    )


def reads_table(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of how a table is read, in the place of its parameter ``choices``."""
    unknown = {"TableChoices": Any}  # imported when a command runs
    own = inspect.signature(command, eval_str=True, locals=unknown)
    reading = inspect.signature(_make_choices, eval_str=True, locals=unknown).parameters

    @wraps(command)
    def run(**given: Any) -> None:
        command(choices=_make_choices(**{name: given.pop(name) for name in reading}), **given)

    parameters = []
    for name, parameter in own.parameters.items():
        parameters += list(reading.values()) if name == "choices" else [parameter]
    run.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


# -- what is fitted ---------------------------------------------------------------------------------------------------


def require_likelihood(name: str, task: str | None) -> None:
    """Raise a usage error where there is no such likelihood of one column, or the task has none."""
    if name == "auto":
        return
    from vmg.likelihoods.families import LIKELIHOODS

    known = [key for key, likelihood in LIKELIHOODS.items() if not likelihood.paired]
    if name in LIKELIHOODS and name not in known:
        raise typer.BadParameter(
            f"{name} takes two numbers a row; use TableRegressor(likelihood={name!r}) in Python",
            param_hint="--likelihood",
        )
    if name not in known:
        raise typer.BadParameter(f"must be one of auto, {', '.join(known)}; got {name}", param_hint="--likelihood")
    if task == "classification":
        raise typer.BadParameter("is for numbers; the task is classification", param_hint="--likelihood")


class Preset(str, Enum):
    """Values of --preset."""

    fast = "fast"
    default = "default"
    best = "best"


def preset_options(preset: Preset) -> dict[str, Any]:
    """Parameters of the estimators; those of ``default`` follow the table."""
    if preset is Preset.fast:  # a look at a table: a third of the members, and half of the steps
        return {"n_members": 4, "max_iter": 200}
    if preset is Preset.best:  # twice the members, and twice the patience
        return {"n_members": 24, "n_iter_no_change": 12}
    return {}

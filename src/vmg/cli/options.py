"""Arguments and options that several commands share, each stated once, and what they mean for an estimator."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from vmg.tables.choices import TableChoices

__all__ = [
    "FIRST_LOOK",
    "NETWORK",
    "OUTPUT",
    "PAPER",
    "READING",
    "TABLE",
    "CategoricalOption",
    "CoverageOption",
    "DataArgument",
    "DateFormatOption",
    "DebugOption",
    "DecimalOption",
    "IgnoreOption",
    "JsonOption",
    "LikelihoodOption",
    "ModelArgument",
    "NaOption",
    "NoHeaderOption",
    "Preset",
    "QuietOption",
    "TaskChoice",
    "TaskOption",
    "TypesOption",
    "make_choices",
    "preset_options",
    "require_likelihood",
    "split_names",
]

TABLE, NETWORK, OUTPUT = "Your table", "Network and training", "Output"  # headings of the help
FIRST_LOOK, PAPER = "A first look", "The paper"


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
ModelArgument = Annotated[Path, typer.Argument(metavar="MODEL", help="A model that `vmg fit` wrote.")]
TaskOption = Annotated[
    TaskChoice, typer.Option(metavar="TASK", help="What the target is: auto, regression or classification.")
]
CoverageOption = Annotated[
    float, typer.Option(metavar="SHARE", callback=_open_share, help="Probability that an interval holds the truth.")
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON document and nothing else.", rich_help_panel=OUTPUT)
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.", rich_help_panel=OUTPUT)]
DebugOption = Annotated[
    bool,
    typer.Option("--debug", expose_value=False, help="Show the traceback of an error.", rich_help_panel=OUTPUT),
]

# -- how a table is read ----------------------------------------------------------------------------------------------

READING = "How the table is read"  # heading of the help

TypesOption = Annotated[
    Path | None,
    typer.Option(
        "--types",
        metavar="FILE.toml",
        help='Kinds of columns: lines such as zip = "category" or note = "ignore" under [columns].',
        rich_help_panel=READING,
    ),
]
CategoricalOption = Annotated[
    list[str] | None,
    typer.Option(metavar="COLUMN,...", help="Columns whose values are names, not amounts.", rich_help_panel=READING),
]
IgnoreOption = Annotated[
    list[str] | None, typer.Option(metavar="COLUMN,...", help="Columns to leave out.", rich_help_panel=READING)
]
DateFormatOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[COLUMN=]FORMAT",
        help="How dates are written, such as %d/%m/%Y, or sold=%d/%m/%Y for one column.",
        rich_help_panel=READING,
    ),
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
NaOption = Annotated[
    list[str] | None,
    typer.Option(
        "--na",
        metavar="WORD,...",
        help="Words that mean a missing cell, as an empty one does.",
        show_default="NA, ?, - and the like",
        rich_help_panel=READING,
    ),
]
NoHeaderOption = Annotated[
    bool | None,
    typer.Option(
        "--no-header",
        help="The first line is a row; columns are called 'column 1', 'column 2', ...",
        show_default=False,
        rich_help_panel=READING,
    ),
]


def split_names(given: list[str] | None) -> list[str]:
    """Names of options that come several times, or once with commas between."""
    return [name.strip() for text in given or [] for name in text.split(",") if name.strip()]


def make_choices(
    types: Path | None,
    categorical: list[str] | None,
    ignore: list[str] | None,
    date_format: list[str] | None,
    decimal: str | None,
    na: list[str] | None,
    no_header: bool | None,
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


# -- what is fitted ---------------------------------------------------------------------------------------------------

LIKELIHOODS = (
    *("auto", "student", "normal", "lognormal", "mixture"),
    *("gamma", "poisson", "negative-binomial", "beta", "ordinal"),
)
PAIRED = ("binomial", "censored")  # two numbers a row, which one column cannot hold

LikelihoodOption = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help=f"How a number scatters: {', '.join(LIKELIHOODS)}. auto chooses on held-out training rows.",
        rich_help_panel=NETWORK,
    ),
]


def require_likelihood(name: str, task: str | None) -> str:
    """The name itself; a mistake of the user where there is no such likelihood, or the task has none."""
    if name in PAIRED:
        raise typer.BadParameter(
            f"{name} takes two numbers a row; use TableRegressor(likelihood={name!r}) in Python",
            param_hint="--likelihood",
        )
    if name not in LIKELIHOODS:
        raise typer.BadParameter(f"must be one of {', '.join(LIKELIHOODS)}; got {name}", param_hint="--likelihood")
    if name != "auto" and task == "classification":
        raise typer.BadParameter("is for numbers; the task is classification", param_hint="--likelihood")
    return name


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

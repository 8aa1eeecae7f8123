"""Arguments and options that several commands share, each stated once, and the headings of the help."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

__all__ = [
    "FIRST_LOOK",
    "NETWORK",
    "OUTPUT",
    "PAPER",
    "SPEED",
    "TABLE",
    "CoverageOption",
    "DataArgument",
    "DebugOption",
    "JsonOption",
    "ModelArgument",
    "QuietOption",
    "TaskChoice",
]

TABLE, NETWORK, OUTPUT = "Your table", "Network and training", "Output"  # headings of the help
SPEED, FIRST_LOOK, PAPER = "Speed", "A first look", "The paper"


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

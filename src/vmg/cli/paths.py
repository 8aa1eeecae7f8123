"""Paths that a command reads and writes, checked before the long work."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

import vmg
from vmg.cli.output import say_aside

if TYPE_CHECKING:
    import pandas as pd

    from vmg.estimators import TableModel

__all__ = ["check_ending", "check_output", "load_both", "load_model", "prints", "stem"]


def stem(data: Path) -> str:
    """houses.csv.gz -> houses."""
    return data.name.removesuffix(".gz").rsplit(".", 1)[0]


def prints(out: str) -> bool:
    """Whether an output is standard output, by any of its names."""
    return out in ("-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")


def check_output(path: Path, *inputs: Path) -> Path:
    """Say what is wrong with an output path before the long work, not after."""
    from vmg.files import check_output, same_file

    if prints(str(path)):
        raise typer.BadParameter(f"must be a file; got {path}", param_hint="--out")
    try:
        check_output(path)
    except OSError as error:
        raise typer.BadParameter(f"cannot be {path}: {error.strerror}", param_hint="--out") from error
    if not path.parent.is_dir():
        raise typer.BadParameter(f"must be in a folder that exists; there is no {path.parent}", param_hint="--out")
    for source in inputs:
        if same_file(path, source):
            raise typer.BadParameter(f"must not be what is read; got {path}, which is {source}", param_hint="--out")
    return path


def check_ending(path: Path) -> Path:
    """Say which endings a table of predictions may have."""
    endings = (".csv", ".csv.gz", ".parquet", ".pq")
    if not path.name.lower().endswith(endings):
        raise typer.BadParameter(f"must end in {', '.join(endings)}; got {path.name}", param_hint="--out")
    return path


def load_model(path: Path) -> TableModel:
    """The model of a table in a file."""
    from vmg.estimators import TableModel
    from vmg.model_file import ModelFileError

    model = vmg.load(path)
    if not isinstance(model, TableModel):
        raise ModelFileError(
            f"{path} holds a {type(model).__name__} without a table's columns; use vmg.load in Python, or vmg fit"
        )
    return model


def load_both(path: Path, data: Path, quiet: bool, decimal: str | None = None) -> tuple[TableModel, pd.DataFrame]:
    """The model and the table, with remarks on how they fit together on standard error.

    The table is read by the types and the decimal mark of the fit; ``decimal`` is the mark of this table, if another.
    """
    from vmg.review.remarks import table_remarks
    from vmg.tables import read_table
    from vmg.tables.choices import TableChoices

    model = load_model(path)
    if decimal is not None:
        model = model.with_decimal(bool(TableChoices().changed(decimal=decimal).decimal_comma))
    frame, notes = read_table(data, **model.reading)
    model.encoder.check(frame)
    if not quiet:
        for note in [*notes, *table_remarks(model.encoder, frame, model.target, model.choices.ignored)]:
            say_aside(note)
    return model, frame

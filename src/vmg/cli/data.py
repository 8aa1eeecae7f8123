"""Tables, datasets and models that a command reads and writes, checked before the long work."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from vmg.cli.options import refuse_options
from vmg.cli.output import say_aside

if TYPE_CHECKING:
    import pandas as pd

    from vmg.scale.scoring import Scorer

__all__ = ["check_output", "has_types", "is_dataset", "load_both", "prints", "stem", "streams"]

LARGE_FILE = 2**28  # bytes from which a file is not read whole


def is_dataset(data: str) -> bool:
    """Whether data are a folder, a pattern or an address, not one file."""
    return "://" in data or any(sign in data for sign in "*?[") or Path(data).is_dir()


def has_types(data: str) -> bool:
    """Whether cells of data have types and columns names: datasets, Parquet files and databases."""
    file = Path(data if Path(data).exists() else data.partition("::")[0])
    head = b""
    if file.is_file():
        with file.open("rb") as stream:
            head = stream.read(16)
    return is_dataset(data) or head.startswith((b"PAR1", b"SQLite format 3")) or head[8:12] == b"DUCK"


def streams(data: str, asked: bool | None, *, shared: bool) -> bool:
    """Whether data are read a batch at a time: datasets, large files, and whatever several processes share."""
    large = Path(data).is_file() and Path(data).stat().st_size > LARGE_FILE
    return shared or is_dataset(data) or (large if asked is None else asked)


def stem(data: Path) -> str:
    """houses.csv.gz -> houses."""
    return data.name.removesuffix(".gz").rsplit(".", 1)[0]


def prints(out: str) -> bool:
    """Whether an output is standard output, by any of its names."""
    return out in ("-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")


def check_output(path: Path, *inputs: Path) -> Path:
    """Raise a usage error where an output cannot be written, before the long work."""
    from vmg.files import check_output, same_file

    why = ""
    try:
        check_output(path)
    except OSError as error:
        why = f"cannot be {path}: {error.strerror}"
    if prints(str(path)):
        why = f"must be a file; got {path}"
    elif not path.parent.is_dir():
        why = f"must be in a folder that exists; there is no {path.parent}"
    for source in inputs:
        if same_file(path, source):
            why = why or f"must not be what is read; got {path}, which is {source}"
    if why:
        raise typer.BadParameter(why, param_hint="--out")
    return path


def load_both(path: Path, data: Path, quiet: bool, decimal: str | None = None) -> tuple[Scorer, pd.DataFrame]:
    """The model, or the fleet in a folder, and the table, with remarks on how they fit together on standard error.

    The table is read by the types and the decimal mark of the fit; ``decimal`` is the mark of this table, if another.
    """
    from vmg.review.remarks import table_remarks
    from vmg.scale import Fleet
    from vmg.scale.scoring import load_scorer
    from vmg.tables import read_table
    from vmg.tables.cells import listing
    from vmg.tables.columns import TableChoices

    model = load_scorer(str(path))
    left_out: list[str] = []
    if isinstance(model, Fleet):
        refuse_options("needs one model; a fleet reads numbers as in its fit", decimal=decimal)
        left_out = [model.by]
    elif decimal is not None:
        model = model.with_decimal(bool(TableChoices.of(decimal=decimal).decimal_comma))
    frame, notes = read_table(data, **model.reading)
    model.encoder.check(frame)
    notes = [*notes, *table_remarks(model.encoder, frame, model.target, [*model.choices.ignored, *left_out])]
    if isinstance(model, Fleet) and (unknown := model.unknown(frame)):
        how = "predicted as a group that is not known" if model.pooled else "not predicted"
        notes.append(f"Rows of groups without a model of their own are {how}: {listing(unknown)}.")
    for note in [] if quiet else notes:
        say_aside(note)
    return model, frame

"""Data that is more than one table in memory: how commands tell it, and how they score it into a folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vmg.cli.output import print_json, say, say_aside, waiting

if TYPE_CHECKING:
    from vmg.estimators.table_inputs import Outside

__all__ = [
    "ENGINE",
    "DatasetArgument",
    "JobsOption",
    "StreamOption",
    "is_dataset",
    "refuse_options",
    "score_into_folder",
    "streams",
]

ENGINE = "Large data"  # heading of the help
LARGE_FILE = 2**28  # bytes from which a file is not read whole

DatasetArgument = Annotated[
    str,
    typer.Argument(
        metavar="DATA",
        help="A table: CSV (also .gz) or Parquet. Or a dataset: a folder of Parquet or Arrow files, a pattern such as "
        "'sales/*.parquet', or an address such as s3://bucket/sales.",
    ),
]
JobsOption = Annotated[
    int, typer.Option("--jobs", metavar="N", help="Processes at once; -1 takes all cores.", rich_help_panel=ENGINE)
]
StreamOption = Annotated[
    bool | None,
    typer.Option(
        "--stream/--in-memory",
        help="Read DATA a batch at a time, or whole.",
        show_default="by its size",
        rich_help_panel=ENGINE,
    ),
]


def is_dataset(data: str) -> bool:
    """Whether data are a folder, a pattern or an address, not one file."""
    return "://" in data or any(sign in data for sign in "*?[") or Path(data).is_dir()


def streams(data: str, asked: bool | None, *, shared: bool) -> bool:
    """Whether data are read a batch at a time: datasets, large files, and whatever several processes share."""
    if asked is not None and not (shared or is_dataset(data)):
        return asked
    return shared or is_dataset(data) or (Path(data).is_file() and Path(data).stat().st_size > LARGE_FILE)


def refuse_options(why: str, **given: object) -> None:
    """Raise a usage error where an option was given that the command cannot follow; names are those of parameters."""
    for name, value in given.items():
        if value:
            raise typer.BadParameter(why, param_hint=f"--{name.replace('_', '-')}")


def score_into_folder(
    model: Path,
    data: str,
    out: Path,
    coverage: float,
    keep: Sequence[str],
    outside: Outside,
    jobs: int,
    json: bool,
    quiet: bool,
) -> None:
    """Score a dataset into a folder of Parquet files, and say how it went."""
    from vmg.scale import score_dataset
    from vmg.tables import TableError
    from vmg.tables.cells import count

    with waiting("Predicting", quiet=quiet):
        report = score_dataset(model, data, out, coverage=coverage, keep=keep, outside=outside, n_jobs=jobs)
    if json:
        refused = [{"part": name, "reason": reason} for name, reason in sorted(report.refused.items())]
        found = {"rows": report.n_rows, "written": report.written, "found": report.found, "empty": report.empty}
        print_json({"out": str(out), "coverage": coverage, **found, "refused": refused})
    elif not quiet:
        say(f"{count(report.n_rows, 'prediction')} written to {count(len(report.written), 'file')} in {out}.")
        if report.found:
            say(f"{count(len(report.found), 'file')} from an earlier run passed over.")
        for name in report.empty:
            say_aside(f"Part {name} has no rows.")
    if report.refused:
        names = "; ".join(f"{name}: {reason}" for name, reason in sorted(report.refused.items()))
        raise TableError(f"{count(len(report.refused), 'part')} not scored, the rest is. {names}")

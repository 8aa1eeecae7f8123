"""``vmg fit --by``: one model for each group of a table's rows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vmg.cli.datasets import ENGINE, is_dataset
from vmg.cli.output import bullet, print_json, say, say_aside, waiting

if TYPE_CHECKING:
    import pandas as pd

    from vmg.scale import Fleet
    from vmg.tables.choices import TableChoices
    from vmg.tables.target import Task

__all__ = ["ByOption", "PoolOption", "fit_by_group", "load_fleet_and_table"]

ByOption = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN", help="Fit one model for each value of this column, into a folder.", rich_help_panel=ENGINE
    ),
]
PoolOption = Annotated[
    bool,
    typer.Option(
        "--pool", help="With --by: let groups borrow from each other; those of few rows gain.", rich_help_panel=ENGINE
    ),
]


def fit_by_group(
    data: str,
    target: str,
    by: str,
    out: Path,
    *,
    task: Task | None,
    choices: TableChoices,
    pool: bool,
    options: Mapping[str, Any],
    jobs: int,
    json: bool,
    quiet: bool,
) -> None:
    """Fit a fleet into a folder, and say how it went."""
    import pandas as pd

    from vmg.scale import fit_fleet, open_dataset
    from vmg.tables import read_table
    from vmg.tables.cells import count

    silent = quiet or json
    if is_dataset(data):
        dataset = open_dataset(data)
        frame = pd.concat(dataset.frames(), ignore_index=True)
        notes = dataset.notes()
    else:
        frame, notes = read_table(data, **{**choices.reading, "texts": [*choices.reading["texts"], by]})
    if not silent:
        say(f"{data}: {count(len(frame), 'row')}, {count(frame.shape[1], 'column')}")
        for note in notes:
            bullet(note)
    with waiting("Training", quiet=quiet):
        report = fit_fleet(
            frame,
            target,
            by,
            out,
            task=task,
            choices=choices,
            pool=pool,
            options=options,
            n_jobs=jobs,
            tell=None if silent else bullet,
        )
    if json:
        fleet = {"fitted": len(report.fitted), "found": len(report.found), "refused": dict(report.refused)}
        print_json({"fleet": str(out), "target": target, "by": by, **fleet, "notes": [*notes, *report.notes]})
    elif not quiet:
        earlier = f", {len(report.found)} from an earlier run" if report.found else ""
        say(f"{count(len(report.fitted), 'model')} written to {out}{earlier}. Next: vmg predict {out} DATA --out FILE")


def load_fleet_and_table(path: Path, data: Path, quiet: bool) -> tuple[Fleet, pd.DataFrame]:
    """The fleet and the table, with remarks on how they fit together on standard error."""
    from vmg.scale import load_fleet
    from vmg.tables import read_table
    from vmg.tables.cells import listing

    fleet = load_fleet(path)
    one = fleet.any_model
    frame, notes = read_table(data, **{**one.reading, "texts": {**one.reading["texts"], fleet.index.by: ()}})
    one.encoder.check(frame)
    unknown = fleet.unknown(frame)
    if unknown:
        how = "predicted as a group that is not known" if fleet.index.others else "not predicted"
        notes = [*notes, f"Rows of groups without a model of their own are {how}: {listing(unknown)}."]
    if not quiet:
        for note in notes:
            say_aside(note)
    return fleet, frame

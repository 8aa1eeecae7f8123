"""``vmg inspect``: how a table would be read, and what is suspicious in it, before anything is fitted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from vmg.cli import options
from vmg.cli.output import bullet, print_json, print_table, say

if TYPE_CHECKING:
    from vmg.tables.columns import TableChoices

__all__ = ["inspect"]


@options.reads_table
def inspect(
    data: options.DataArgument,
    target: Annotated[
        str | None, typer.Option("--target", "-t", metavar="COLUMN", help="The column to predict, if it is known yet.")
    ] = None,
    task: options.TaskOption = options.TaskChoice.auto,
    *,
    choices: TableChoices,
    json: options.JsonOption = False,
    debug: options.DebugOption = False,
) -> None:
    """Show how a table would be read: types, roles and suspicions. Nothing is fitted and nothing written.

    Suspicions are columns that look like identifiers, tell the target, say the same as another, never change, or have a
    value far from all others.
    """
    from vmg.review.remarks import inspect_table
    from vmg.tables import read_table
    from vmg.tables.cells import count

    frame, notes = read_table(data, **choices.reading)
    inspection = inspect_table(frame, target, options.asked_task(task), choices)
    if json:
        report = {"notes": [*notes, *inspection.notes], "suspicions": inspection.suspicions}
        print_json({"rows": len(frame), "columns": [column._asdict() for column in inspection.columns], **report})
        return
    title = f"{data}: {count(len(frame), 'row')}, {count(frame.shape[1], 'column')}"
    lines = [[c.name, c.type, c.role, f"{c.missing:,}", f"{c.different:,}", c.values] for c in inspection.columns]
    print_table(title, ["column", "type", "role", "missing", "different", "values"], lines)
    for note in [*notes, *inspection.notes]:
        bullet(note)
    if inspection.suspicions:
        say("Worth a look:")
        for suspicion in inspection.suspicions:
            bullet(suspicion)

"""``vmg inspect``: how a table would be read, and what is suspicious in it, before anything is fitted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from vmg.cli.options import DataArgument, DebugOption, JsonOption, TaskChoice, TaskOption, reads_table
from vmg.cli.output import bullet, print_json, print_table, say

if TYPE_CHECKING:
    from vmg.tables.choices import TableChoices

__all__ = ["inspect"]


@reads_table
def inspect(
    data: DataArgument,
    target: Annotated[
        str | None, typer.Option("--target", "-t", metavar="COLUMN", help="The column to predict, if it is known yet.")
    ] = None,
    task: TaskOption = TaskChoice.auto,
    *,
    choices: TableChoices,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Show how a table would be read: types, roles and suspicions. Nothing is fitted and nothing written.

    Suspicions are columns that look like identifiers, tell the target, say the same as another, never change, or have a
    value far from all others.
    """
    from vmg.review.remarks import inspect_table
    from vmg.tables import read_table
    from vmg.tables.cells import count

    frame, notes = read_table(data, **choices.reading)
    inspection = inspect_table(frame, target, None if task is TaskChoice.auto else task.value, choices)
    if json:
        print_json(
            {
                "rows": len(frame),
                "columns": [column._asdict() for column in inspection.columns],
                "notes": [*notes, *inspection.notes],
                "suspicions": inspection.suspicions,
            }
        )
        return
    title = f"{data}: {count(len(frame), 'row')}, {count(frame.shape[1], 'column')}"
    header = ["column", "type", "role", "missing", "different", "values"]
    print_table(
        title,
        header,
        [[c.name, c.type, c.role, f"{c.missing:,}", f"{c.different:,}", c.values] for c in inspection.columns],
    )
    for note in [*notes, *inspection.notes]:
        bullet(note)
    if inspection.suspicions:
        say("Worth a look:")
        for suspicion in inspection.suspicions:
            bullet(suspicion)

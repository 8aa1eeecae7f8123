"""``vmg update``: a model that takes in rows which have arrived since."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vmg.cli.datasets import DatasetArgument
from vmg.cli.options import DebugOption, JsonOption, ModelArgument, QuietOption
from vmg.cli.output import print_json, say, say_aside, waiting
from vmg.cli.paths import check_output, load_model

__all__ = ["update"]


def update(
    model: ModelArgument,
    data: DatasetArgument,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="MODEL", help="Where it goes.", show_default="MODEL itself")
    ] = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Take new rows into a model, without the old ones and in memory that does not grow with them.

    What the model says of numbers is then what all rows together say of its output layers, exactly. Columns, hidden
    layers and calibration stay as they were; fit anew when the data have changed.
    """
    from vmg.scale import as_parquet, update_model
    from vmg.tables.wording import count

    path = check_output(model if out is None else out, Path(data))
    fitted = load_model(model)
    with waiting("Updating", quiet=quiet), as_parquet(data) as source:
        found = update_model(fitted, source)
    found.model.save(path)
    if not quiet:
        for note in found.notes:
            say_aside(note)
    if json:
        print_json({"model": str(path), "rows": found.n_rows, "left_out": found.n_left_out, "notes": found.notes})
    elif not quiet:
        without = f"; {count(found.n_left_out, 'row')} without a usable target left out" if found.n_left_out else ""
        say(f"{count(found.n_rows, 'row')} taken in{without}. Model written to {path}.")

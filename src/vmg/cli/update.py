"""``vmg update``: a model that takes in rows which have arrived since."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vmg.cli import options
from vmg.cli.data import check_output
from vmg.cli.output import print_json, say, say_aside, waiting

__all__ = ["update"]


def update(
    model: options.ModelArgument,
    data: options.DatasetArgument,
    out: Annotated[
        Path | None,
        options.output(
            metavar="MODEL",
            help="Where it goes. In place, the model as it was is kept beside it, with the ending .before.",
            show_default="MODEL itself",
        ),
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Count rows once more that the model has seen before.")
    ] = False,
    json: options.JsonOption = False,
    quiet: options.QuietOption = False,
    debug: options.DebugOption = False,
) -> None:
    """Update a model with new rows only, in constant memory.

    What the model says of numbers is then what all rows together say of its output layers; for counts, grades and
    classes it is so approximately, best with few large batches. Columns, hidden layers and calibration stay as they
    were; fit anew when the data have changed. Rows whose target is absurdly far beyond those of the fit are left out.
    """
    from vmg.files import locked, replacing, same_file
    from vmg.review.remarks import table_remarks
    from vmg.scale import as_parquet, open_dataset, update_model
    from vmg.scale.fleet import load_table_model
    from vmg.tables.cells import count

    path = check_output(model if out is None else out, Path(data))
    load_table_model(model)  # says what is wrong with the file
    with locked(model):  # an update that comes meanwhile waits, and starts from this one's result
        fitted = load_table_model(model)
        with waiting("Updating", quiet=quiet), as_parquet(data, **fitted.reading) as source:
            updated = update_model(fitted, source, again=again)
            first = next(open_dataset(source).frames())  # what is strange in a dataset is so in its first rows
            remarks = table_remarks(fitted.encoder, first, fitted.target, fitted.choices.ignored)
        if same_file(path, model):
            with replacing(path.with_name(f"{path.name}.before")) as backup:
                backup.write_bytes(path.read_bytes())
        updated.model.save(path)
    notes = [*updated.notes, *remarks]
    for note in [] if quiet else notes:
        say_aside(note)
    if json:
        counts = {"rows": updated.n_rows, "left_out": updated.n_left_out}
        print_json({"model": str(path), **counts, "notes": notes})
    elif not quiet:
        without = f"; {count(updated.n_left_out, 'row')} left out" if updated.n_left_out else ""
        say(f"{count(updated.n_rows, 'row')} taken in{without}. Model written to {path}.")

"""``vmg predict``: predictions of the rows of a table."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vmg.cli.datasets import ENGINE, DatasetArgument, JobsOption, RayOption, is_dataset, score_into_folder
from vmg.cli.fleets import load_fleet_and_table
from vmg.cli.options import CoverageOption, DebugOption, JsonOption, ModelArgument, QuietOption
from vmg.cli.output import print_json, say, visible
from vmg.cli.paths import check_ending, check_output, load_both
from vmg.cli.progress import waiting

if TYPE_CHECKING:
    from vmg.fleets import Fleet
    from vmg.tables import TableModel

__all__ = ["predict"]


def predict(
    model: ModelArgument,
    data: DatasetArgument,
    out: Annotated[
        str,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="CSV (also .gz) or Parquet, by its ending; - prints CSV. A dataset needs a folder, FOLDER/.",
        ),
    ] = "-",
    coverage: CoverageOption = 0.9,
    keep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN",
            help="A column to write beside the predictions; may come several times.",
            rich_help_panel=ENGINE,
        ),
    ] = None,
    jobs: JobsOption = -1,
    ray: RayOption = False,
    json: JsonOption = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Predict the rows of a table, with intervals or probabilities.

    Numbers come with mean, std, interval, and the shares of noise (aleatoric) and ignorance (epistemic); classes with
    the probability of each, entropy and mutual information (ignorance).

    A dataset is read a batch at a time and scored into a folder, one Parquet file for each part; a run that was stopped
    goes on where it was.
    """
    if out.endswith("/") or is_dataset(data) or (out != "-" and Path(out).is_dir()):
        if out == "-":
            raise typer.BadParameter("must be a folder where DATA is a dataset; got -", param_hint="--out")
        score_into_folder(model, data, Path(out), coverage, keep or [], jobs, ray, json, quiet)
        return
    from vmg.tables import write_table
    from vmg.tables.phrases import count

    path = None if out == "-" else check_ending(check_output(Path(out), model, Path(data)))
    fitted: TableModel | Fleet
    if model.is_dir():
        fitted, frame = load_fleet_and_table(model, Path(data), quiet)
    else:
        fitted, frame = load_both(model, Path(data), quiet)
    with waiting("Predicting", quiet=quiet):
        predictions = fitted.predict_frame(frame, coverage)
    if path is not None:
        write_table(predictions, path)
    if json:
        rows = predictions.astype(object).to_dict(orient="records")
        print_json({"target": fitted.target, "task": fitted.task, "coverage": coverage, "rows": rows})
    elif path is None:
        from vmg.tables.files import csv_safe

        text = csv_safe(predictions).to_csv(index=False)
        sys.stdout.write(visible(text) if sys.stdout.isatty() else text)
    elif not quiet:
        say(f"{count(len(predictions), 'prediction')} written to {path}.")

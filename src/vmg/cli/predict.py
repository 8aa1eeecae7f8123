"""``vmg predict``: predictions of the rows of a table."""

from __future__ import annotations

import sys
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from vmg.cli import options
from vmg.cli.data import check_output, is_dataset, load_both, prints
from vmg.cli.output import TrainingBar, print_json, say, say_aside, visible, waiting

__all__ = ["predict"]

ENDINGS = (".csv", ".csv.gz", ".parquet", ".pq")  # of tables of predictions
OutsideChoice = Enum("OutsideChoice", {"flag": "flag", "clip": "clip", "error": "error"})
PointChoice = Enum("PointChoice", {"mean": "mean", "median": "median"})


def predict(
    model: options.ModelArgument,
    data: options.DatasetArgument,
    out: Annotated[
        str,
        options.output(
            metavar="FILE",
            help="CSV (also .gz) or Parquet, by its ending; - prints CSV. A dataset needs a folder, FOLDER/.",
        ),
    ] = "-",
    coverage: options.CoverageOption = 0.9,
    keep: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN,...", help="Columns to write beside the predictions, such as keys of rows."),
    ] = None,
    outside: Annotated[
        OutsideChoice, typer.Option(metavar="WAY", help="Values outside the training range: flag, clip or error.")
    ] = OutsideChoice.flag,
    point: Annotated[
        PointChoice, typer.Option(metavar="POINT", help="The one number that is predicted: mean or median.")
    ] = PointChoice.mean,
    above: Annotated[
        list[float] | None,
        typer.Option(metavar="NUMBER", help="Also the probability that the target is above this; may come again."),
    ] = None,
    decimal: options.DecimalOption = None,
    jobs: options.JobsOption = -1,
    json: options.JsonOption = False,
    quiet: options.QuietOption = False,
    debug: options.DebugOption = False,
) -> None:
    """Predict the rows of a table, with intervals or probabilities.

    Numbers come with mean, std, interval, and the two parts of std: noise (aleatoric) and ignorance (epistemic).
    Classes come with the probability of each, and with entropy and its two parts. Columns are named after the target.

    A row with cells that are missing or unseen is predicted for all that they may be, and its flags say so; familiarity
    is 1 for rows like the training rows and falls with the distance from them.

    A dataset is read a batch at a time and scored into a folder, one Parquet file for each part; a run that was stopped
    goes on where it was.
    """
    kept = options.split_names(keep)
    how: dict[str, Any] = {"coverage": coverage, "outside": outside.value, "point": point.value, "above": above or ()}
    if out.endswith("/") or is_dataset(data) or (out != "-" and Path(out).is_dir()):
        if prints(out):
            raise typer.BadParameter("must be a folder where DATA is a dataset; got -", param_hint="--out")
        options.refuse_options("needs one table and one model; the cells of a dataset have types", decimal=decimal)
        _score_into_folder(model, data, Path(out), {**how, "keep": kept, "n_jobs": jobs}, json=json, quiet=quiet)
        return
    import pandas as pd

    from vmg.estimators.table_estimator import split_flags
    from vmg.tables import write_table
    from vmg.tables.cells import count, require_columns
    from vmg.tables.files import csv_safe

    path = None if prints(out) else check_output(Path(out), model, Path(data))
    if path is not None and not path.name.lower().endswith(ENDINGS):
        raise typer.BadParameter(f"must end in {', '.join(ENDINGS)}; got {path.name}", param_hint="--out")
    fitted, frame = load_both(model, Path(data), quiet, decimal)
    require_columns(frame, kept)
    with waiting("Predicting", quiet=quiet):
        predicted = fitted.predict_frame(frame, **how).rename(columns={name: f"{name}_predicted" for name in kept})
    predictions = pd.concat([frame[list(dict.fromkeys(kept))], predicted], axis=1)
    if path is not None:
        write_table(predictions, path)
    if json:
        rows = predictions.assign(flags=predictions["flags"].map(split_flags)).astype(object).to_dict(orient="records")
        print_json({"target": fitted.target, "task": fitted.task, "coverage": coverage, "rows": rows})
    elif path is None:
        seen = sys.stdout.isatty()  # people want the digits that mean something, programs all
        text = csv_safe(predictions).to_csv(index=False, float_format="%.6g" if seen else None)
        sys.stdout.write(visible(text) if seen else text)
    elif not quiet:
        say(f"{count(len(predictions), 'prediction')} written to {path}.")


def _score_into_folder(model: Path, data: str, out: Path, how: dict[str, Any], *, json: bool, quiet: bool) -> None:
    """Score a dataset into a folder of Parquet files, and say how it went."""
    from vmg.scale import score_dataset
    from vmg.tables import TableError
    from vmg.tables.cells import count

    with TrainingBar("Predicting", quiet=quiet) as bar:
        report = score_dataset(model, data, out, **how, progress=bar.count)
    refused = sorted(report.refused.items())
    if json:
        counts = {"rows": report.n_rows, "written": report.written, "found": report.found, "empty": report.empty}
        parts = [{"part": name, "reason": reason} for name, reason in refused]
        print_json({"out": str(out), "coverage": how["coverage"], **counts, "refused": parts})
    elif not quiet:
        say(f"{count(report.n_rows, 'prediction')} written to {count(len(report.written), 'file')} in {out}.")
        if report.found:
            say(f"{count(len(report.found), 'file')} from an earlier run passed over.")
        for name in report.empty:
            say_aside(f"Part {name} has no rows.")
    if refused:
        why = "; ".join(f"{name}: {reason}" for name, reason in refused)
        raise TableError(f"{count(len(refused), 'part')} not scored, the rest is. {why}")

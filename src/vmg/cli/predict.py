"""``vmg predict``: predictions of the rows of a table."""

from __future__ import annotations

import sys
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vmg.cli.data import check_ending, check_output, is_dataset, load_both, prints
from vmg.cli.options import (
    CoverageOption,
    DatasetArgument,
    DebugOption,
    DecimalOption,
    JobsOption,
    JsonOption,
    ModelArgument,
    QuietOption,
    refuse_options,
    split_names,
)
from vmg.cli.output import print_json, say, say_aside, visible, waiting

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["predict"]


class OutsideChoice(str, Enum):
    """Values of --outside."""

    flag = "flag"
    clip = "clip"
    error = "error"


class PointChoice(str, Enum):
    """Values of --point."""

    mean = "mean"
    median = "median"


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
        typer.Option(metavar="COLUMN,...", help="Columns to write beside the predictions, such as keys of rows."),
    ] = None,
    outside: Annotated[
        OutsideChoice,
        typer.Option(metavar="WAY", help="Values outside the training range: flag, clip or error."),
    ] = OutsideChoice.flag,
    point: Annotated[
        PointChoice,
        typer.Option(metavar="POINT", help="The one number that is predicted: mean or median."),
    ] = PointChoice.mean,
    above: Annotated[
        list[float] | None,
        typer.Option(metavar="NUMBER", help="Also the probability that the target is above this; may come again."),
    ] = None,
    decimal: DecimalOption = None,
    jobs: JobsOption = -1,
    json: JsonOption = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Predict the rows of a table, with intervals or probabilities.

    Numbers come with mean, std, interval, and the two parts of std: noise (aleatoric) and ignorance (epistemic).
    Classes come with the probability of each, and with entropy and its two parts. Columns are named after the target.

    A row with cells that are missing or unseen is predicted for all that they may be, and its flags say so; familiarity
    is 1 for rows like the training rows and falls with the distance from them.

    A dataset is read a batch at a time and scored into a folder, one Parquet file for each part; a run that was stopped
    goes on where it was.
    """
    if out.endswith("/") or is_dataset(data) or (out != "-" and Path(out).is_dir()):
        if prints(out):
            raise typer.BadParameter("must be a folder where DATA is a dataset; got -", param_hint="--out")
        refuse_options("needs one table and one model; the cells of a dataset have types", decimal=decimal)
        refuse_options("needs one table", point=point is PointChoice.median, above=above)
        how: dict[str, Any] = {"coverage": coverage, "keep": split_names(keep), "outside": outside.value}
        _score_into_folder(model, data, Path(out), how, jobs, json, quiet)
        return
    from vmg.estimators.table_inputs import split_flags
    from vmg.tables import write_table
    from vmg.tables.cells import count

    path = None if prints(out) else check_ending(check_output(Path(out), model, Path(data)))
    fitted, frame = load_both(model, Path(data), quiet, decimal)
    with waiting("Predicting", quiet=quiet):
        predicted = fitted.predict_frame(frame, coverage, outside=outside.value, point=point.value, above=above or ())
    predictions = _beside(frame, predicted, split_names(keep))
    if path is not None:
        write_table(predictions, path)
    if json:
        rows = predictions.assign(flags=predictions["flags"].map(split_flags)).astype(object).to_dict(orient="records")
        print_json({"target": fitted.target, "task": fitted.task, "coverage": coverage, "rows": rows})
    elif path is None:
        from vmg.tables.files import csv_safe

        text = csv_safe(predictions).to_csv(index=False)
        sys.stdout.write(visible(text) if sys.stdout.isatty() else text)
    elif not quiet:
        say(f"{count(len(predictions), 'prediction')} written to {path}.")


def _score_into_folder(
    model: Path, data: str, out: Path, how: dict[str, Any], jobs: int, json: bool, quiet: bool
) -> None:
    """Score a dataset into a folder of Parquet files, and say how it went."""
    from vmg.scale import score_dataset
    from vmg.tables import TableError
    from vmg.tables.cells import count

    with waiting("Predicting", quiet=quiet):
        report = score_dataset(model, data, out, **how, n_jobs=jobs)
    if json:
        refused = [{"part": name, "reason": reason} for name, reason in sorted(report.refused.items())]
        found = {"rows": report.n_rows, "written": report.written, "found": report.found, "empty": report.empty}
        print_json({"out": str(out), "coverage": how["coverage"], **found, "refused": refused})
    elif not quiet:
        say(f"{count(report.n_rows, 'prediction')} written to {count(len(report.written), 'file')} in {out}.")
        if report.found:
            say(f"{count(len(report.found), 'file')} from an earlier run passed over.")
        for name in report.empty:
            say_aside(f"Part {name} has no rows.")
    if report.refused:
        names = "; ".join(f"{name}: {reason}" for name, reason in sorted(report.refused.items()))
        raise TableError(f"{count(len(report.refused), 'part')} not scored, the rest is. {names}")


def _beside(frame: pd.DataFrame, predictions: pd.DataFrame, keep: list[str]) -> pd.DataFrame:
    """Columns of the table before the predictions."""
    import pandas as pd

    from vmg.tables import TableError
    from vmg.tables.cells import listing

    unknown = [name for name in keep if name not in frame.columns]
    if unknown:
        raise TableError(f"the table has no column {listing(unknown)} to keep; it has {listing(frame.columns)}")
    clash = [name for name in keep if name in predictions.columns]
    renamed = predictions.rename(columns={name: f"{name}_predicted" for name in clash})
    return pd.concat([frame[list(dict.fromkeys(keep))], renamed], axis=1)

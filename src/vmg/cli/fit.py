"""``vmg fit``: a model of a table, and a score of it on rows that were held out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from vmg.cli.data import check_output, is_dataset, stem, streams
from vmg.cli.options import (
    ENGINE,
    NETWORK,
    DatasetArgument,
    DebugOption,
    JobsOption,
    JsonOption,
    Preset,
    QuietOption,
    TaskChoice,
    TaskOption,
    preset_options,
    reads_table,
    refuse_options,
    require_likelihood,
)
from vmg.cli.output import TrainingBar, bullet, print_comparison, print_json, say, say_aside, waiting

if TYPE_CHECKING:
    import pandas as pd

    from vmg.estimators.table_model import TableModel
    from vmg.review.comparison import Comparison
    from vmg.review.holdout import Holdout
    from vmg.tables.choices import TableChoices
    from vmg.tables.target import Task

__all__ = ["fit"]

SCORE = "Score on held-out rows"  # heading of the help
HOLDOUT = 0.2


@reads_table
def fit(
    data: DatasetArgument,
    target: Annotated[str, typer.Option("--target", "-t", metavar="COLUMN", help="The column to predict.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="MODEL", help="Where the model goes.", show_default="DATA's name, .vmg"),
    ] = None,
    task: TaskOption = TaskChoice.auto,
    likelihood: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="How a number scatters, such as student, lognormal, gamma or poisson; a wrong name lists all. auto "
            "chooses on held-out training rows.",
            rich_help_panel=NETWORK,
        ),
    ] = "auto",
    *,
    choices: TableChoices,
    holdout: Annotated[
        float, typer.Option(metavar="SHARE", help="Share of the rows that is held out.", rich_help_panel=SCORE)
    ] = HOLDOUT,
    cv: Annotated[
        int, typer.Option("--cv", metavar="K", help="Hold out each of K folds in turn.", rich_help_panel=SCORE)
    ] = 0,
    holdout_by: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Hold out whole groups of rows, such as shops.", rich_help_panel=SCORE),
    ] = None,
    time: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Hold out the last rows by this column.", rich_help_panel=SCORE)
    ] = None,
    no_holdout: Annotated[
        bool, typer.Option("--no-holdout", help="Fit once, to all rows, without a score.", rich_help_panel=SCORE)
    ] = False,
    conformal: Annotated[
        float,
        typer.Option(
            metavar="SHARE", help="Set aside this share of rows to calibrate intervals, so that their coverage holds."
        ),
    ] = 0.0,
    preset: Annotated[
        Preset, typer.Option(metavar="PRESET", help="fast, default or best.", rich_help_panel=NETWORK)
    ] = Preset.default,
    members: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Networks in the ensemble.", show_default="auto", rich_help_panel=NETWORK
        ),
    ] = None,
    hidden: Annotated[
        str, typer.Option(metavar="N,...", help="Units of each hidden layer.", rich_help_panel=NETWORK)
    ] = "auto",
    max_iter: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Most training steps.",
            show_default="auto",
            rich_help_panel=NETWORK,
        ),
    ] = None,
    seed: Annotated[
        int,
        typer.Option(
            metavar="N", min=0, max=2**32 - 1, help="Same seed and table, same model.", rich_help_panel=NETWORK
        ),
    ] = 0,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Go on after Ctrl-C: what was finished, held-out fits or pieces of a dataset, is not done again.",
        ),
    ] = False,
    stream: Annotated[
        bool | None,
        typer.Option(
            "--stream/--in-memory",
            help="Read DATA a batch at a time, or whole.",
            show_default="by its size",
            rich_help_panel=ENGINE,
        ),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN", help="Fit one model for each value of this column, into a folder.", rich_help_panel=ENGINE
        ),
    ] = None,
    pool: Annotated[
        bool,
        typer.Option(
            "--pool",
            help="With --by: let groups borrow from each other; those of few rows gain.",
            rich_help_panel=ENGINE,
        ),
    ] = False,
    jobs: JobsOption = 1,
    json: JsonOption = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Fit a model to a table, score it on rows that were held out, and write it to a file.

    Numbers, texts, dates, times, booleans and missing cells are handled, and it says how. The score stands beside those
    of a base rate, a linear model and gradient boosting. The model that is written is fitted to all rows.

    A dataset is read a batch at a time, twice: hidden layers learn from a sample of its rows, output layers from all.
    Under `torchrun` several processes share it. No rows of it are held out.
    """
    from vmg.processes import is_first, joined_by_torchrun
    from vmg.review.holdout import Holdout
    from vmg.scale import as_parquet, fit_dataset, open_dataset

    name = stem(Path(data.rstrip("/*")))
    asked = {"n_members": members, "max_iter": max_iter, "hidden_layer_sizes": _hidden_sizes(hidden)}
    options: dict[str, Any] = {"random_state": seed, **preset_options(preset)}
    options |= {name: value for name, value in asked.items() if value is not None}
    wanted = None if task is TaskChoice.auto else cast("Task", task.value)
    require_likelihood(likelihood, wanted)
    if likelihood != "auto":
        options["likelihood"], wanted = likelihood, "regression"
    scored: dict[str, Any] = {"cv": cv, "holdout_by": holdout_by, "time": time, "conformal": conformal}
    scored["holdout"] = holdout != HOLDOUT and not no_holdout
    if by is not None:
        refuse_options("cannot be had together with --by", **scored, stream=stream)
        folder = Path(f"{name}-by-{by}") if out is None else out
        common: dict[str, Any] = {"task": wanted, "choices": choices, "pool": pool, "options": options}
        _fit_by_group(data, target, by, folder, {**common, "n_jobs": jobs}, json=json, quiet=quiet)
        return
    refuse_options("needs --by", pool=pool, jobs=jobs != 1)
    path = check_output(Path(f"{name}.vmg") if out is None else out, Path(data))
    with joined_by_torchrun() as shared:
        silent = quiet or json or not is_first()
        if streams(data, stream, shared=shared):
            refuse_options("needs a table that is read whole, with --in-memory", **scored)
            hidden_bar = quiet or not is_first()
            with (
                as_parquet(data, **choices.reading) as source,
                TrainingBar("Training", quiet=hidden_bar) as bar,
            ):
                common = {
                    "task": wanted,
                    "choices": choices,
                    "options": options,
                    "callbacks": [bar],
                    "checkpoint": Path(f"{path}.partial"),
                    "resume": resume,
                }
                model = fit_dataset(source, target, **common, tell=None if silent else bullet)
                n_rows = open_dataset(source).n_rows
        else:
            plan = None if no_holdout else Holdout(holdout, cv, holdout_by, time)
            settings = {
                "target": target,
                "task": wanted,
                "conformal": conformal,
                "choices": choices,
                "options": options,
            }
            model, n_rows = _fit_table(Path(data), plan, settings, path, resume=resume, quiet=quiet, silent=silent)
        if not is_first():
            return
    model.save(path)
    _finished(path).unlink(missing_ok=True)
    last = model.estimator.history_.last
    if json:
        summary = {
            "model": str(path),
            "target": model.target,
            "task": model.task,
            "rows": n_rows,
            "features": len(model.encoder.feature_names),
            "steps": last.step,
            "seconds": last.seconds,
            "log_posterior": last.elbo,
            "fit": last.expected_log_likelihood,
            "complexity": last.kl,
            "held_out": model.held_out or None,
            "notes": list(model.notes),
        }
        print_json(summary)
    elif not quiet:
        say(f"Trained for {last.seconds:.1f} s, {last.step:,} steps; log posterior {last.elbo:.3f} a row.")
        say(f"Model written to {path}. Next: vmg evaluate {path} DATA, vmg predict {path} DATA --out FILE")


def _fit_table(
    data: Path, plan: Holdout | None, settings: dict[str, Any], path: Path, *, resume: bool, quiet: bool, silent: bool
) -> tuple[TableModel, int]:
    """A model of all rows of a table that fits in memory, with scores on held-out rows; and the number of rows."""
    from vmg.estimators import TableModel
    from vmg.tables import read_table

    choices = settings["choices"]
    frame, notes = read_table(data, **choices.reading)
    if not silent:
        _say_read(data, frame, notes)
    TableModel.check(frame, **settings, tell=None if silent else bullet)  # mistakes are said before any work
    comparison = None
    if plan is not None:
        comparison = _score(frame, plan, settings, path, data, resume=resume, quiet=quiet, silent=silent)
    with TrainingBar("Training on all rows", quiet=quiet) as bar:
        model = TableModel.fit(frame, **settings, callbacks=[bar])
    model = replace(model, notes=(*notes, *model.notes))
    if not silent and model.likelihood_note:
        bullet(model.likelihood_note)
    return model if comparison is None else replace(model, held_out=comparison.to_document()), len(frame)


def _fit_by_group(
    data: str, target: str, by: str, out: Path, settings: dict[str, Any], *, json: bool, quiet: bool
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
        reading = settings["choices"].reading
        frame, notes = read_table(data, **{**reading, "texts": [*reading["texts"], by]})
    if not silent:
        _say_read(data, frame, notes)
    with waiting("Training", quiet=quiet):
        report = fit_fleet(frame, target, by, out, **settings, tell=None if silent else bullet)
    if json:
        fleet = {"fitted": len(report.fitted), "found": len(report.found), "refused": dict(report.refused)}
        print_json({"fleet": str(out), "target": target, "by": by, **fleet, "notes": [*notes, *report.notes]})
    elif not quiet:
        earlier = f", {len(report.found)} from an earlier run" if report.found else ""
        say(f"{count(len(report.fitted), 'model')} written to {out}{earlier}. Next: vmg predict {out} DATA --out FILE")


def _say_read(data: Path | str, frame: pd.DataFrame, notes: list[str]) -> None:
    """The size of a table, and how it was read."""
    from vmg.tables.cells import count

    say(f"{data}: {count(len(frame), 'row')}, {count(frame.shape[1], 'column')}")
    for note in notes:
        bullet(note)


def _finished(path: Path) -> Path:
    """The file that keeps scores of finished folds while a fit runs."""
    return path.with_name(path.name + ".partial")


def _score(
    frame: pd.DataFrame,
    plan: Holdout,
    settings: dict[str, Any],
    path: Path,
    data: Path,
    *,
    resume: bool,
    quiet: bool,
    silent: bool,
) -> Comparison | None:
    """Scores on held-out rows, printed; None where there are too few rows."""
    from vmg.review.holdout import FinishedScores, Plan, describe_run, score_held_out
    from vmg.review.rivals import BASELINES, RIVALS

    choices, seed = settings["choices"], settings["options"]["random_state"]
    made = Plan.make(frame, settings["target"], settings["task"], plan, choices, seed)
    if made is None:
        if not silent:
            bullet("Too few rows to hold some out: no score.")
        return None
    run = describe_run(
        frame,
        {"data": str(data), **settings, "choices": choices.to_document(), "held out": plan.to_document()},
    )
    finished, n_splits = FinishedScores(_finished(path), run, resume=resume), len(made.splits)
    rivals = {name: RIVALS[name] for name in BASELINES}
    try:
        comparison = score_held_out(made, _fitter(settings, n_splits, quiet=quiet), finished, rivals)
    except KeyboardInterrupt:
        if finished.n_folds() and not quiet:
            kept = f"{finished.n_folds()} of {n_splits} held-out fits are kept in {finished.path}"
            say_aside(f"{kept}; --resume goes on.")
        raise
    left_out = [settings["target"], *choices.ignored]
    if caution := plan.caution(made.rows.drop(columns=[name for name in left_out if name in made.rows])):
        comparison = replace(comparison, sentence=f"{comparison.sentence} {caution}")
    if not silent:
        print_comparison(f"Held out: {plan.words(made.splits)}, not seen by the fits", comparison)
    return comparison


def _fitter(settings: dict[str, Any], n_splits: int, *, quiet: bool) -> Any:
    """Fits to the rows of a split, with a bar of its own."""
    from vmg.estimators import TableModel

    def fit_rows(rows: pd.DataFrame, number: int) -> TableModel:
        label = "Held-out fit" if n_splits == 1 else f"Held-out fit {number + 1} of {n_splits}"
        with TrainingBar(label, quiet=quiet) as bar:
            return TableModel.fit(rows, **{**settings, "conformal": 0.0}, callbacks=[bar])

    return fit_rows


def _hidden_sizes(text: str) -> tuple[int, ...] | None:
    if text == "auto":
        return None
    try:
        sizes = tuple(int(part) for part in text.split(","))
    except ValueError:
        sizes = ()
    if not sizes or min(sizes) < 1:
        raise typer.BadParameter(
            f"must be auto, or sizes of layers such as 50 or 50,50; got '{text}'", param_hint="--hidden"
        )
    return sizes

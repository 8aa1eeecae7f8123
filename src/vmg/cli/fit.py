"""``vmg fit``: a model of a table, and a score of it on rows that were held out."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vmg.cli import options
from vmg.cli.data import check_output, is_dataset, stem, streams
from vmg.cli.output import TrainingBar, bullet, print_comparison, print_json, say, say_aside

if TYPE_CHECKING:
    import pandas as pd

    from vmg.estimators.table_model import TableModel
    from vmg.review.holdout import Holdout
    from vmg.tables.columns import TableChoices

__all__ = ["fit"]

HOLDOUT = 0.2


@options.reads_table
def fit(
    data: options.DatasetArgument,
    target: options.TargetOption,
    out: Annotated[
        Path | None, options.output(metavar="MODEL", help="Where the model goes.", show_default="DATA's name, .vmg")
    ] = None,
    task: options.TaskOption = options.TaskChoice.auto,
    likelihood: Annotated[
        str,
        options.network(
            metavar="NAME",
            help="How a number scatters, such as student, lognormal, gamma or poisson; a wrong name lists all. auto "
            "chooses on held-out training rows.",
        ),
    ] = "auto",
    lower_limit: Annotated[
        float | None, options.network(metavar="NUMBER", help="Targets at or below this are known to be no higher.")
    ] = None,
    upper_limit: Annotated[
        float | None, options.network(metavar="NUMBER", help="Targets at or above this are known to be no lower.")
    ] = None,
    *,
    choices: TableChoices,
    holdout: Annotated[float, options.scored(metavar="SHARE", help="Share of the rows that is held out.")] = HOLDOUT,
    cv: Annotated[int, options.scored("--cv", metavar="K", help="Hold out each of K folds in turn.")] = 0,
    holdout_by: Annotated[
        str | None, options.scored(metavar="COLUMN", help="Hold out whole groups of rows, such as shops.")
    ] = None,
    time: Annotated[str | None, options.scored(metavar="COLUMN", help="Hold out the last rows by this column.")] = None,
    no_holdout: Annotated[bool, options.scored("--no-holdout", help="Fit once, to all rows, without a score.")] = False,
    conformal: Annotated[
        float,
        typer.Option(metavar="SHARE", help="Share of the rows to calibrate intervals, so that their coverage holds."),
    ] = 0.0,
    preset: Annotated[
        options.Preset, options.network(metavar="PRESET", help="fast, default or best.")
    ] = options.Preset.default,
    members: Annotated[
        int | None, options.network(metavar="N", min=1, help="Networks in the ensemble.", show_default="auto")
    ] = None,
    hidden: Annotated[str, options.network(metavar="N,...", help="Units of each hidden layer.")] = "auto",
    max_iter: Annotated[
        int | None, options.network(metavar="N", min=1, help="Most training steps.", show_default="auto")
    ] = None,
    balanced: Annotated[
        bool, options.network("--balanced", help="Let rare classes count as much as frequent ones.")
    ] = False,
    seed: options.SeedOption = 0,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on after Ctrl-C: held-out fits that were finished are not done again.")
    ] = False,
    stream: Annotated[
        bool | None,
        options.engine("--stream/--in-memory", help="Read DATA a batch at a time, or not.", show_default="by size"),
    ] = None,
    by: Annotated[
        str | None, options.engine(metavar="COLUMN", help="Fit one model for each value of this column, into a folder.")
    ] = None,
    pool: Annotated[
        bool, options.engine("--pool", help="With --by: let groups borrow from each other; those of few rows gain.")
    ] = False,
    jobs: options.JobsOption = 1,
    json: options.JsonOption = False,
    quiet: options.QuietOption = False,
    debug: options.DebugOption = False,
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

    name, wanted = stem(Path(data.rstrip("/*"))), options.asked_task(task)
    options.require_likelihood(likelihood, wanted)
    asked: dict[str, Any] = {"n_members": members, "max_iter": max_iter, "hidden_layer_sizes": _hidden_sizes(hidden)}
    asked |= {"lower_limit": lower_limit, "upper_limit": upper_limit}
    limits = {name: asked[name] is not None for name in ("lower_limit", "upper_limit")}
    if any(limits.values()):
        if wanted == "classification" or likelihood != "auto" or pool or conformal:
            why = "is for numbers, sets the likelihood, and cannot be had with --pool or --conformal"
            options.refuse_options(why, **limits)
        infinite = {name: given and not isfinite(asked[name]) for name, given in limits.items()}
        options.refuse_options("must be a finite number", **infinite)
        if lower_limit is not None and upper_limit is not None:
            options.refuse_options("must be below --upper-limit", lower_limit=lower_limit >= upper_limit)
        wanted = "regression"
    if likelihood != "auto":
        asked["likelihood"], wanted = likelihood, "regression"
    if balanced:
        options.refuse_options("is for classes", balanced=wanted == "regression")
        asked["class_weight"], wanted = "balanced", "classification"
    settings: dict[str, Any] = {"task": wanted, "choices": choices}
    settings["options"] = options.estimator_options(preset, seed, **asked)
    scored: dict[str, Any] = {"cv": cv, "holdout_by": holdout_by, "time": time, "conformal": conformal}
    scored["holdout"] = holdout != HOLDOUT and not no_holdout
    if by is not None:
        options.refuse_options("cannot be had together with --by", **scored, stream=stream)
        folder = Path(f"{name}-by-{by}") if out is None else out
        _fit_by_group(data, target, by, folder, {**settings, "pool": pool, "n_jobs": jobs}, json=json, quiet=quiet)
        return
    options.refuse_options("needs --by", pool=pool, jobs=jobs != 1)
    path = check_output(Path(f"{name}.vmg") if out is None else out, Path(data))
    kept = path.with_name(path.name + ".partial")  # what is finished while a fit runs
    with joined_by_torchrun() as shared:
        silent = quiet or json or not is_first()
        if streams(data, stream, shared=shared):
            options.refuse_options("needs one file and one process", in_memory=stream is False)
            options.refuse_options(
                "needs a table that is read whole, with --in-memory", **scored, **limits, resume=resume
            )
            bar = TrainingBar("Training", quiet=quiet or not is_first())
            with as_parquet(data, **choices.reading) as source, bar:
                model = fit_dataset(source, target, **settings, callbacks=[bar], tell=None if silent else bullet)
                n_rows = open_dataset(source).n_rows
        else:
            plan = None if no_holdout else Holdout(holdout, cv, holdout_by, time)
            settings |= {"target": target, "conformal": conformal}
            model, n_rows = _fit_table(data, plan, settings, kept, resume=resume, quiet=quiet, silent=silent)
        if not is_first():
            return
    model.save(path)
    kept.unlink(missing_ok=True)
    last = model.estimator.history_.last
    if json:
        of_fit = {"rows": n_rows, "features": len(model.encoder.feature_names), "steps": last.step}
        terms = {"log_posterior": last.elbo, "fit": last.expected_log_likelihood, "complexity": last.kl}
        said = {"held_out": model.held_out or None, "notes": list(model.notes)}
        about = {"model": str(path), "target": model.target, "task": model.task}
        print_json({**about, **of_fit, "seconds": last.seconds, **terms, **said})
    elif not quiet:
        say(f"Trained for {last.seconds:.1f} s, {last.step:,} steps; log posterior {last.elbo:.3f} a row.")
        say(f"Model written to {path}. Next: vmg evaluate {path} DATA, vmg predict {path} DATA --out FILE")


def _fit_table(
    data: str, plan: Holdout | None, settings: dict[str, Any], kept: Path, *, resume: bool, quiet: bool, silent: bool
) -> tuple[TableModel, int]:
    """A model of all rows of a table that fits in memory, with scores on held-out rows; and the number of rows."""
    from vmg.estimators.table_model import TableModel, prepare_table
    from vmg.files import read_lines
    from vmg.review.comparison import OWN
    from vmg.review.holdout import TooFewRowsError, compare_table
    from vmg.review.rivals import BASELINES
    from vmg.tables.cells import count

    frame, notes = _read(data, settings["choices"].reading, silent)
    tell = (lambda note: None) if silent else bullet
    prepared = prepare_table(frame, **settings, tell=tell)  # mistakes are said before any work
    held_out: dict[str, Any] = {}
    how: dict[str, Any] = {"results": kept, "resume": resume, "watch": partial(TrainingBar, quiet=quiet)}
    try:
        if plan is not None:
            comparison = compare_table(frame, **settings, rivals=BASELINES, holdout=plan, **how)
            held_out = comparison.to_document()
            if not silent:
                print_comparison(f"Held out: {comparison.held_out}, not seen by the fits", comparison)
            for note in comparison.notes:
                tell(note)
    except TooFewRowsError:
        tell("Too few rows to hold some out: no score.")
    except KeyboardInterrupt:
        n_kept = sum(line.get("method") == OWN for line in read_lines(kept))
        if n_kept and not quiet:
            say_aside(f"Kept in {kept}: the scores of {count(n_kept, 'held-out fit')}; --resume goes on.")
        raise
    with TrainingBar("Training on all rows", quiet=quiet) as bar:
        model = TableModel.fit(frame, **settings, callbacks=[bar])
    for note in model.notes[len(prepared.notes) :]:  # what training said
        tell(note)
    if model.task == "regression":
        tell(f"Likelihood: {model.estimator.likelihood_}, {model.estimator.likelihood_reason_}.")
    return replace(model, notes=(*notes, *model.notes), held_out=held_out), len(frame)


def _fit_by_group(
    data: str, target: str, by: str, out: Path, settings: dict[str, Any], *, json: bool, quiet: bool
) -> None:
    """Fit a fleet into a folder, and say how it went."""
    from vmg.scale import fit_fleet
    from vmg.tables.cells import count

    silent, reading = quiet or json, settings["choices"].reading
    frame, notes = _read(data, {**reading, "texts": [*reading["texts"], by]}, silent)
    with TrainingBar("Training", quiet=quiet) as bar:
        report = fit_fleet(frame, target, by, out, **settings, tell=None if silent else bullet, progress=bar.count)
    if json:
        fleet = {"fitted": len(report.fitted), "found": len(report.found), "refused": dict(report.refused)}
        print_json({"fleet": str(out), "target": target, "by": by, **fleet, "notes": [*notes, *report.notes]})
    elif not quiet:
        earlier = f", {len(report.found)} from an earlier run" if report.found else ""
        say(f"{count(len(report.fitted), 'model')} written to {out}{earlier}. Next: vmg predict {out} DATA --out FILE")


def _read(data: str, reading: dict[str, Any], silent: bool) -> tuple[pd.DataFrame, list[str]]:
    """A whole table or dataset, and notes on how it was read, which are printed with its size."""
    import pandas as pd

    from vmg.scale import open_dataset
    from vmg.tables import read_table
    from vmg.tables.cells import count

    if is_dataset(data):
        dataset = open_dataset(data)
        frame, notes = pd.concat(dataset.frames(), ignore_index=True), dataset.notes()
    else:
        frame, notes = read_table(data, **reading)
    if not silent:
        say(f"{data}: {count(len(frame), 'row')}, {count(frame.shape[1], 'column')}")
        for note in notes:
            bullet(note)
    return frame, notes


def _hidden_sizes(text: str) -> tuple[int, ...] | None:
    """The sizes that --hidden names; None where they follow the table."""
    sizes = text.split(",")
    if text != "auto" and not all(size.strip().isdecimal() and int(size) > 0 for size in sizes):
        why = f"must be auto, or sizes of layers such as 50 or 50,50; got '{text}'"
        raise typer.BadParameter(why, param_hint="--hidden")
    return None if text == "auto" else tuple(map(int, sizes))

"""``vmg compare``: vmg beside other methods on a table, all on the same folds."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vmg.cli import options
from vmg.cli.data import check_output, stem
from vmg.cli.output import TrainingBar, bullet, print_comparison, print_json, say, say_aside

if TYPE_CHECKING:
    from vmg.tables.columns import TableChoices

__all__ = ["compare"]


@options.reads_table
def compare(
    data: options.DataArgument,
    target: options.TargetOption,
    rivals: Annotated[
        list[str] | None,
        typer.Option(
            "--with",
            metavar="METHOD,...",
            help="Methods to compare with, such as gp, forest, catboost, lightgbm, ngboost or realmlp; a wrong name "
            "lists all. Those that are not installed are left out, and named.",
            show_default="scikit-learn's",
        ),
    ] = None,
    folds: Annotated[int, typer.Option(metavar="K", min=2, help="Hold out each of K folds in turn.")] = 5,
    by: Annotated[str | None, options.column(help="Hold out whole groups of rows, such as shops.")] = None,
    time: Annotated[str | None, options.column(help="Predict later rows by this column from earlier ones.")] = None,
    gap: Annotated[str | None, options.column(help="Hold out blocks inside the range of this column.")] = None,
    task: options.TaskOption = options.TaskChoice.auto,
    coverage: options.CoverageOption = 0.9,
    *,
    choices: TableChoices,
    preset: Annotated[
        options.Preset, typer.Option(metavar="PRESET", help="Of vmg: fast, default or best.")
    ] = options.Preset.default,
    seed: options.SeedOption = 0,
    results: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A line for each fit. A comparison that is repeated runs only what is not in it.",
            show_default="DATA's name, .compare.jsonl",
        ),
    ] = None,
    out: Annotated[
        Path | None, options.output(metavar="FILE", help="Write a page: .html, or Markdown by another name.")
    ] = None,
    json: options.JsonOption = False,
    quiet: options.QuietOption = False,
    debug: options.DebugOption = False,
) -> None:
    """Compare vmg with other methods on a table of yours: the same folds for all, each with its own defaults.

    Methods without a distribution of their own get a normal one, as wide as their errors on rows left out of their fit.
    """
    from vmg.estimators.table_model import prepare_table
    from vmg.files import replacing
    from vmg.report import render_comparison
    from vmg.review.holdout import Holdout, compare_table
    from vmg.tables import read_table

    page = None if out is None else check_output(out, data)
    kept = check_output(results or Path(f"{stem(data)}.compare.jsonl"), data)
    holdout = Holdout(folds=folds, by=by, time=time, gap=gap)
    frame, notes = read_table(data, **choices.reading)
    for note in [] if quiet or json else notes:
        bullet(note)
    settings: dict[str, Any] = {"task": options.asked_task(task), "options": options.estimator_options(preset, seed)}
    settings["choices"] = choices if by is None else replace(choices, types={**choices.types, by: "ignore"})
    prepare_table(frame, target, **settings)  # mistakes are said before any work
    asked = None if rivals is None else options.split_names(rivals)
    watched: dict[str, Any] = {"watch": partial(TrainingBar, quiet=quiet), "tell": None if quiet else say_aside}
    settings |= {"holdout": holdout, "coverage": coverage, "results": kept, **watched}
    comparison = compare_table(frame, target, rivals=asked, **settings)
    if page is not None:
        with replacing(page) as temporary:
            made = render_comparison(comparison, f"{target} in {data}") if page.suffix == ".html" else f"{comparison}\n"
            temporary.write_text(made, encoding="utf-8")
    if json:
        more = {"methods": comparison.rows, "gains": comparison.gains, "advice": comparison.advice}
        document = {"target": target, "task": comparison.task, **comparison.to_document(), **more}
        print_json({**document, "notes": comparison.notes})
    elif not quiet:
        print_comparison(f"'{target}' in {data}, {comparison.held_out}", comparison)
        say(comparison.advice)
        for note in comparison.notes:
            bullet(note)
        say(f"Fits are kept in {kept}.")

"""``vmg fit``: a model of a table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from vmg.cli.options import NETWORK, DataArgument, DebugOption, JsonOption, QuietOption, TaskChoice
from vmg.cli.output import bullet, print_json, say
from vmg.cli.paths import check_output, stem
from vmg.cli.progress import LOG_POSTERIOR, TrainingBar

if TYPE_CHECKING:
    from vmg.tables.target import Task

__all__ = ["fit"]


def fit(
    data: DataArgument,
    target: Annotated[str, typer.Option("--target", "-t", metavar="COLUMN", help="The column to predict.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="MODEL", help="Where the model goes.", show_default="DATA's name, .vmg"),
    ] = None,
    task: Annotated[
        TaskChoice, typer.Option(metavar="TASK", help="What the target is: auto, regression or classification.")
    ] = TaskChoice.auto,
    exclude: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN", help="A column to leave out; may come several times.")
    ] = None,
    conformal: Annotated[
        float,
        typer.Option(
            metavar="SHARE", help="Set aside this share of rows to calibrate intervals, so that their coverage holds."
        ),
    ] = 0.0,
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
    json: JsonOption = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Fit a model to a table and write it to a file.

    Numbers, texts, dates, booleans and missing cells are handled, and it says how. Whether the target asks for
    regression or classification is inferred from it.
    """
    from vmg.tables import TableModel, read_table
    from vmg.tables.phrases import count

    path = check_output(Path(stem(data) + ".vmg") if out is None else out, data)
    options: dict[str, Any] = {
        "n_members": "auto" if members is None else members,
        "hidden_layer_sizes": _hidden_sizes(hidden),
        "max_iter": "auto" if max_iter is None else max_iter,
        "random_state": seed,
    }
    silent = quiet or json
    frame, notes = read_table(data)
    if not silent:
        say(f"{data}: {count(len(frame), 'row')}, {count(frame.shape[1], 'column')}")
        for note in notes:
            bullet(note)
    with TrainingBar("Training", quiet=quiet, terms=LOG_POSTERIOR) as bar:
        model = TableModel.fit(
            frame,
            target,
            task=None if task is TaskChoice.auto else cast("Task", task.value),
            exclude=exclude or (),
            conformal=conformal,
            options=options,
            callbacks=[bar],
            tell=None if silent else bullet,
        )
    model.save(path)
    last = model.estimator.history_.last
    if json:
        summary = {
            "model": str(path),
            "target": model.target,
            "task": model.task,
            "rows": len(frame),
            "features": model.estimator.n_features_in_,
            "steps": last.step,
            "seconds": last.seconds,
            "log_posterior": last.elbo,
            "fit": last.expected_log_likelihood,
            "complexity": last.kl,
            "notes": [*notes, *model.notes],
        }
        print_json(summary)
    elif not quiet:
        say(f"Trained for {last.seconds:.1f} s, {last.step:,} steps; log posterior {last.elbo:.3f} a row.")
        say(f"Model written to {path}. Next: vmg evaluate {path} DATA, vmg predict {path} DATA --out FILE")


def _hidden_sizes(text: str) -> tuple[int, ...] | str:
    if text == "auto":
        return text
    try:
        sizes = tuple(int(part) for part in text.split(","))
    except ValueError:
        sizes = ()
    if not sizes or min(sizes) < 1:
        raise typer.BadParameter(
            f"must be auto, or sizes of layers such as 50 or 50,50; got '{text}'", param_hint="--hidden"
        )
    return sizes

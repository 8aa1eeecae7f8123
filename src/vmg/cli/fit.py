"""``vmg fit``: a model of a table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from vmg.cli.datasets import DatasetArgument, JobsOption, RayOption, StreamOption, streams
from vmg.cli.fleets import ByOption, PoolOption, fit_by_group
from vmg.cli.options import NETWORK, DebugOption, JsonOption, QuietOption, TaskChoice
from vmg.cli.output import bullet, print_json, say
from vmg.cli.paths import check_output, stem
from vmg.cli.progress import LOG_POSTERIOR, TrainingBar

if TYPE_CHECKING:
    from vmg.tables.target import Task

__all__ = ["fit"]


def fit(
    data: DatasetArgument,
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
    stream: StreamOption = None,
    by: ByOption = None,
    pool: PoolOption = False,
    jobs: JobsOption = 1,
    ray: RayOption = False,
    json: JsonOption = False,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Fit a model to a table and write it to a file.

    Numbers, texts, dates, booleans and missing cells are handled, and it says how. Whether the target asks for
    regression or classification is inferred from it.

    A dataset is read a batch at a time, twice: hidden layers learn from a sample of its rows, output layers from all.
    Under `torchrun` several processes share it.
    """
    from vmg.streaming import as_parquet, fit_dataset, open_dataset
    from vmg.streaming.sharing import is_first
    from vmg.tables import TableModel, read_table
    from vmg.tables.phrases import count
    from vmg.training.distributed import joined_by_torchrun

    name = stem(Path(data.rstrip("/*")))
    if by is None:
        path = check_output(Path(f"{name}.vmg") if out is None else out, Path(data))
    options: dict[str, Any] = {
        "n_members": "auto" if members is None else members,
        "hidden_layer_sizes": _hidden_sizes(hidden),
        "max_iter": "auto" if max_iter is None else max_iter,
        "random_state": seed,
    }
    wanted = None if task is TaskChoice.auto else cast("Task", task.value)
    if by is not None:
        if conformal:
            raise typer.BadParameter("cannot be had together with --by", param_hint="--conformal")
        fit_by_group(
            data,
            target,
            by,
            Path(f"{name}-by-{by}") if out is None else out,
            task=wanted,
            exclude=exclude or (),
            pool=pool,
            options={key: value for key, value in options.items() if value != "auto"},
            jobs=jobs,
            ray=ray,
            json=json,
            quiet=quiet,
        )
        return
    with joined_by_torchrun() as shared, TrainingBar("Training", quiet=quiet, terms=LOG_POSTERIOR) as bar:
        silent = quiet or json or not is_first()
        common: dict[str, Any] = {"task": wanted, "exclude": exclude or (), "options": options, "callbacks": [bar]}
        common["tell"] = None if silent else bullet
        if streams(data, stream, shared=shared):
            if conformal:
                raise typer.BadParameter("needs a table that is read whole, with --in-memory", param_hint="--conformal")
            with as_parquet(data) as source:
                model, n_rows = fit_dataset(source, target, **common), open_dataset(source).n_rows
        else:
            frame, notes = read_table(data)
            n_rows = len(frame)
            if not silent:
                say(f"{data}: {count(len(frame), 'row')}, {count(frame.shape[1], 'column')}")
                for note in notes:
                    bullet(note)
            model = TableModel.fit(frame, target, conformal=conformal, **common)
            model = replace(model, notes=(*notes, *model.notes))
        if not is_first():
            return
    model.save(path)
    last = model.estimator.history_.last
    if json:
        summary = {
            "model": str(path),
            "target": model.target,
            "task": model.task,
            "rows": n_rows,
            "features": model.estimator.n_features_in_,
            "steps": last.step,
            "seconds": last.seconds,
            "log_posterior": last.elbo,
            "fit": last.expected_log_likelihood,
            "complexity": last.kl,
            "notes": list(model.notes),
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

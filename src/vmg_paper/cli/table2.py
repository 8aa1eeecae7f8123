"""``vmg reproduce table2``: MNIST as in the paper, and what the networks' doubt is worth."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import torch
import typer

import vmg
from vmg.cli.output import TrainingBar, say, say_aside, waiting
from vmg.files import replacing
from vmg_paper.cli.option_lists import names, whole_numbers
from vmg_paper.experiments import results_file, table2
from vmg_paper.experiments.published import PAPER_TABLE2
from vmg_paper.experiments.registry import METHODS
from vmg_paper.experiments.runner import run
from vmg_paper.experiments.table2_methods import MAX_NOISE, MAX_POINTS, n_weights, parse_size
from vmg_paper.experiments.table2_summary import common_size, foremost, render, summarise
from vmg_paper.experiments.typeset import FORMATS

__all__ = ["table2_command"]

METHODS_HELP = f"Separated by commas: {', '.join(METHODS['table2'])}."


def table2_command(
    methods: Annotated[str, typer.Option(metavar="NAMES", help=METHODS_HELP)] = "vmg",
    sizes: Annotated[
        str | None,
        typer.Option(
            metavar="SIZES", help="Layers x units, such as 2x400,3x150.", show_default="each method's, as in the paper"
        ),
    ] = None,
    seeds: Annotated[str, typer.Option(metavar="NUMBERS", help="One network each.")] = "0",
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the training images.")] = 80,
    points: Annotated[
        str,
        typer.Option(
            metavar="NUMBERS",
            help="Pseudo-points of every layer; of several, the best on the validation images, with the first seed.",
        ),
    ] = "50,150",
    max_noise: Annotated[
        float, typer.Option(min=1e-4, max=1, help="Limit on √α, the noise of the pseudo-data.")
    ] = MAX_NOISE,
    refit: Annotated[
        bool,
        typer.Option("--refit", help="Once all is chosen, train on the validation images too, and score that network."),
    ] = False,
    raw: Annotated[
        bool,
        typer.Option("--raw", help="Pixels as they are, as in the paper; else less their mean over training images."),
    ] = False,
    learning_rate: Annotated[
        float | None, typer.Option(min=1e-6, max=1, help="Of Adam.", show_default="each method's own")
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="Threads of PyTorch.")] = 2,
    out: Annotated[Path, typer.Option(help="Results file; what is in it already is not run again.")] = Path(
        "results/table2.jsonl"
    ),
    checkpoints: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Keep the state of every run here, once an epoch, and go on from it after a kill.",
            show_default="checkpoints, beside the results",
        ),
    ] = None,
    figure: Annotated[Path | None, typer.Option(metavar="PNG", help="Draw the results there.")] = None,
    show: Annotated[
        bool,
        typer.Option(
            "--show",
            help="Run nothing: all that the results file has.",
        ),
    ] = False,
    form: Annotated[str, typer.Option("--format", metavar="FORMAT", help=f"One of {', '.join(FORMATS)}.")] = "markdown",
) -> None:
    """Test errors on permutation-invariant MNIST, calibration, rejection and doubt about images of other things.

    The last 10,000 training images are for validation. One JSON line per (method, size, seed) is appended to the
    results file; a killed run goes on from its last epoch, to the same bits.
    """
    chosen_methods = names(methods, tuple(METHODS["table2"]), "--methods")
    chosen_sizes = None if sizes is None else _sizes(sizes)
    [form] = names(form, FORMATS, "--format")
    torch.set_num_threads(threads)
    chosen_seeds = whole_numbers(seeds, "--seeds", low=0, high=2**32 - 1)
    chosen_points = whole_numbers(points, "--points", low=1, high=MAX_POINTS)
    if show:
        wanted, missing = table2.answered(out), list[table2.Task]()
        if not wanted:
            raise typer.BadParameter(f"must hold results of this table; {out} has none", param_hint="--out")
    else:
        wanted, missing = table2.tasks(
            chosen_methods,
            chosen_sizes,
            seeds=chosen_seeds,
            epochs=epochs,
            points=chosen_points,
            max_noise=max_noise,
            refit=refit,
            raw=raw,
            learning_rate=learning_rate,
            out=out,
        )
    folder = out.parent / "checkpoints" if checkpoints is None else checkpoints
    experiment = table2.Table2(vmg.__version__, out, folder)
    for task, [record] in run(experiment, missing, out=out, watch=TrainingBar):
        say_aside(
            f"{task.method} {task.size}, seed {task.seed}: {record['error_percent']:.2f} % in {record['seconds']:.0f} s"
        )
    asked = set(wanted)
    lines = [line for line in table2.read_lines(out) if table2.key(line) in asked]
    summary = summarise(lines)
    say(render(summary, form))
    if figure is not None:
        _draw(summary, figure)


def _sizes(text: str) -> list[str]:
    chosen = text.split(",")
    for size in chosen:
        try:
            parse_size(size)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--sizes") from error
    return chosen


def _draw(summary: Sequence[results_file.Record], path: Path) -> None:
    """The picture of all methods in the results and in the paper, with the foremost run of each method and size."""
    from vmg_paper.figures.table2_figure import MethodPicture, draw_table2_figure  # matplotlib takes its time

    at_size = common_size(summary)
    shown = foremost(summary)
    pictures = []
    for name in dict.fromkeys([*(row["method"] for row in shown), *(method for method, _ in PAPER_TABLE2)]):
        rows = [row for row in shown if row["method"] == name]
        errors = {row["size"]: row["error_percent"] for row in rows if row["prediction"] == table2.MEAN}
        paper = {size: error for (method, size), error in PAPER_TABLE2.items() if method == name and size}
        anywhere = PAPER_TABLE2.get((name, ""))
        there = [row for row in rows if row["size"] == at_size]
        if not there:
            pictures.append(MethodPicture(name, errors, paper, paper_error_anywhere=anywhere))
            continue
        widest = there[-1]  # the average over most draws, where there is one
        accuracy = [100 - error for error in widest["rejection"]["error_percent"]]
        auroc = {name: kinds["entropy"] for name, kinds in widest["auroc"].items()}
        rejection = widest["rejection"]["rates_percent"], accuracy
        pictures.append(MethodPicture(name, errors, paper, rejection, auroc, anywhere))
    sizes = sorted({size for one in pictures for size in (*one.errors, *one.paper_errors)}, key=n_weights)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary, waiting("Drawing"):
        draw_table2_figure(pictures, sizes, temporary, at_size=at_size)
    say_aside(f"Figure: {path}")

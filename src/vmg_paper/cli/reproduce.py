"""``vmg reproduce``: the paper's experiments."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Annotated

import torch
import typer

from vmg.cli.output import TrainingBar, say, say_aside, waiting
from vmg.files import append_lines, read_lines
from vmg_paper.cli.figures import RESULTS, figure1_command, figure2_command
from vmg_paper.data import TABLES
from vmg_paper.experiments import ablations, table1, table2
from vmg_paper.experiments.digits import load_digits
from vmg_paper.experiments.results_file import Record, Watch, fill, read_experiment, run
from vmg_paper.experiments.table1_methods import TABLE_METHODS
from vmg_paper.experiments.table2_methods import DIGIT_METHODS, MAX_NOISE, MAX_POINTS, parse_size

__all__ = ["reproduce"]

reproduce = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
reproduce.command("figure1")(figure1_command)
reproduce.command("figure2")(figure2_command)

Show = Annotated[bool, typer.Option("--show", help="Run nothing: print all that the results file has.")]
Page = Annotated[Path | None, typer.Option("--write", metavar="PAGE", help="Put the tables there.")]
OUT_HELP = "Results file; what is in it already is not run again."


def _list_methods(asked: bool) -> None:
    if not asked:
        return
    width = max(map(len, TABLE_METHODS))
    for name, method in TABLE_METHODS.items():
        say(f"{name:<{width}}  {method.summary}")
    raise typer.Exit


@reproduce.callback()
def experiments(
    listed: Annotated[
        bool, typer.Option("--list", help="Name the methods of table1.", callback=_list_methods, is_eager=True)
    ] = False,
) -> None:
    """Run the paper's experiments and print its figures beside ours."""


@reproduce.command("table1", epilog="Example: `vmg reproduce table1 --datasets yacht,boston --methods table,vmg`")
def table1_command(
    datasets: Annotated[str, typer.Option(metavar="NAMES", help="Tables, separated by commas.")] = ",".join(
        TABLES[:-1]
    ),
    methods: Annotated[str, typer.Option(metavar="NAMES", help="Methods, separated by commas.")] = "vmg",
    splits: Annotated[int | None, typer.Option(min=1, help="Only the first splits of each table.")] = None,
    seed: Annotated[int, typer.Option(help="Of training.")] = 0,
    jobs: Annotated[int, typer.Option(min=1, help="Tables that run at once, each in a process of its own.")] = 1,
    threads: Annotated[int, typer.Option(min=1, help="Threads of PyTorch in each.")] = 1,
    out: Annotated[Path, typer.Option(help=OUT_HELP)] = Path("results/table1.jsonl"),
    show: Show = False,
) -> None:
    """Test RMSE and log-likelihood on the regression tables, standard splits, all splits as one batched network.

    One JSON line per (method, dataset, split) is appended to the results file; a killed run resumes where it was.
    """
    chosen_tables = _names(datasets, TABLES, "--datasets")
    chosen_methods = _names(methods, tuple(TABLE_METHODS), "--methods")
    if show:
        say(table1.render(table1.summarise(read_experiment(out, "table1"))))
        return
    torch.set_num_threads(threads)
    _earn(table1.tasks(chosen_tables, chosen_methods, out=out, n_splits=splits, seed=seed), out, jobs, threads)
    lines = [
        line
        for line in read_experiment(out, "table1")
        if line["dataset"] in chosen_tables and line["method"] in chosen_methods and line["seed"] == seed
    ]
    say(table1.render(table1.summarise(lines)))


def _earn(missing: list[table1.Task], out: Path, jobs: int, threads: int) -> None:
    """Run the tasks that the results file does not answer."""
    with waiting(f"{len(missing)} tables to run, {jobs} at once") if missing and jobs > 1 else nullcontext():
        for task, earned in run(table1.execute, missing, out=out, jobs=jobs, threads=threads, watch=TrainingBar):
            seconds = sum(record["seconds"] for record in earned)
            say_aside(f"{task.dataset}: {task.method}, {len(earned)} splits in {seconds:.0f} s")


@reproduce.command("ablations", epilog="Example: `vmg reproduce ablations --write docs/ablations.md`")
def ablations_command(
    jobs: Annotated[int, typer.Option(min=1, help="Fits that run at once, each in a process of its own.")] = 1,
    out: Annotated[Path, typer.Option(help=OUT_HELP)] = Path("results/ablations.jsonl"),
    page: Page = None,
    show: Show = False,
) -> None:
    """The paper's network with one thing changed, on five small tables and on MNIST, and parameters of each form.

    One JSON line per (variant, table, split) is appended to the results file; a killed run resumes where it was.
    """
    names = list(ablations.ABLATIONS)
    if not show:
        torch.set_num_threads(1)
        missing = table1.tasks(ablations.DATASETS, names, out=out, n_splits=ablations.N_SPLITS, experiment="ablations")
        _earn(sorted(missing, key=lambda task: names.index(task.method)), out, jobs, threads=1)
        _earn_images(out)
    tables = ablations.render(read_lines(out))
    if page is None:
        say(tables)
    else:
        fill(page, RESULTS, tables)


def _earn_images(out: Path) -> None:
    """Run the variants on MNIST that the results file does not have."""
    done = {line["method"] for line in read_lines(out) if line["dataset"] == ablations.MNIST}
    digits = cache(load_digits)
    for name in ablations.IMAGE_VARIANTS:
        if name not in done:
            append_lines(out, [ablations.execute_images(name, digits(), TrainingBar)])


@reproduce.command("table2", epilog="Example: `vmg reproduce table2 --methods vmg,dropout --sizes 3x150 --seeds 0,1,2`")
def table2_command(
    methods: Annotated[
        str, typer.Option(metavar="NAMES", help=f"Separated by commas: {', '.join(DIGIT_METHODS)}.")
    ] = "vmg",
    sizes: Annotated[
        str | None,
        typer.Option(
            metavar="SIZES", help="Layers x units, such as 2x400,3x150.", show_default="each method's, as in the paper"
        ),
    ] = None,
    seeds: Annotated[str, typer.Option(metavar="NUMBERS", help="One network each.")] = "0",
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the training images.")] = 80,
    points: Annotated[int, typer.Option(min=1, max=MAX_POINTS, help="Pseudo-points of every layer.")] = MAX_POINTS,
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
    out: Annotated[Path, typer.Option(help=OUT_HELP)] = Path("results/table2.jsonl"),
    page: Page = None,
    show: Show = False,
) -> None:
    """Test errors on permutation-invariant MNIST, calibration, rejection and doubt about images of other things.

    The last 10,000 training images are for validation. One JSON line per (method, size, seed) is appended to the
    results file; a killed run goes on from its last epoch, kept in the folder ``checkpoints`` beside it, to the same
    bits.
    """
    chosen_methods = _names(methods, tuple(DIGIT_METHODS), "--methods")
    chosen_sizes = None if sizes is None else _sizes(sizes)
    torch.set_num_threads(threads)
    chosen_seeds = _seeds(seeds)
    if show:
        wanted, missing = [table2.key(line) for line in read_experiment(out, "table2")], list[table2.Task]()
        if not wanted:
            raise typer.BadParameter(f"must hold results of this table; {out} has none", param_hint="--out")
    else:
        wanted, missing = table2.tasks(
            chosen_methods,
            chosen_sizes,
            seeds=chosen_seeds,
            epochs=epochs,
            points=points,
            max_noise=max_noise,
            refit=refit,
            raw=raw,
            learning_rate=learning_rate,
            out=out,
        )
    digits = cache(load_digits)

    def execute(task: table2.Task, watch: Watch) -> list[Record]:
        return [table2.execute(task, digits(), checkpoints=out.parent / "checkpoints", watch=watch)]

    for task, [record] in run(execute, missing, out=out, watch=TrainingBar):
        say_aside(
            f"{task.method} {task.size}, seed {task.seed}: {record['error_percent']:.2f} % in {record['seconds']:.0f} s"
        )
    asked = set(wanted)
    lines = [line for line in read_experiment(out, "table2") if table2.key(line) in asked]
    summary = table2.summarise(lines)
    if page is None:
        say(table2.render(summary))
    else:
        fill(page, RESULTS, table2.render_page(summary))


def _names(text: str, known: Sequence[str], option: str) -> list[str]:
    """Names separated by commas, each of them known."""
    chosen = text.split(",")
    unknown = [name for name in chosen if name not in known]
    if unknown:
        raise typer.BadParameter(f"must be among {', '.join(known)}; got {', '.join(unknown)}", param_hint=option)
    return chosen


def _seeds(text: str) -> list[int]:
    """Different whole numbers, separated by commas."""
    parts = text.split(",")
    if not all(part.strip().isdecimal() and int(part) < 2**32 for part in parts) or len(parts) != len(set(parts)):
        raise typer.BadParameter(f"must be different whole numbers such as 1,2; got '{text}'", param_hint="--seeds")
    return [int(part) for part in parts]


def _sizes(text: str) -> list[str]:
    chosen = text.split(",")
    for size in chosen:
        try:
            parse_size(size)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--sizes") from error
    return chosen

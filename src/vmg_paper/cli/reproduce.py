"""``vmg reproduce``: the paper's experiments."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import torch
import typer

import vmg
from vmg.cli.datasets import RayOption, ray_address
from vmg.cli.output import TrainingBar, say, say_aside, waiting
from vmg_paper.cli.figures import figure1_command, figure2_command
from vmg_paper.cli.option_lists import names
from vmg_paper.cli.table2 import table2_command
from vmg_paper.data import TABLES
from vmg_paper.experiments import results_file
from vmg_paper.experiments.registry import METHODS, listing
from vmg_paper.experiments.runner import run
from vmg_paper.experiments.table1 import Table1, tasks
from vmg_paper.experiments.table1_summary import FORMATS, render, summarise

__all__ = ["reproduce"]

reproduce = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)

TABLE2_EXAMPLE = "Example: `vmg reproduce table2 --methods vmg,dropout --sizes 3x150 --seeds 0,1,2`"

reproduce.command("table2", epilog=TABLE2_EXAMPLE)(table2_command)
reproduce.command("figure1")(figure1_command)
reproduce.command("figure2")(figure2_command)


def _list_methods(asked: bool) -> None:
    if not asked:
        return
    methods = listing("table1")
    width = max(len(name) for name, _ in methods)
    for name, summary in methods:
        say(f"{name:<{width}}  {summary}")
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
    ray: RayOption = False,
    out: Annotated[Path, typer.Option(help="Results file; what is in it already is not run again.")] = Path(
        "results/table1.jsonl"
    ),
    show: Annotated[bool, typer.Option("--show", help="Run nothing: print all that the results file has.")] = False,
    form: Annotated[str, typer.Option("--format", metavar="FORMAT", help=f"One of {', '.join(FORMATS)}.")] = "markdown",
) -> None:
    """Test RMSE and log-likelihood on the regression tables, standard splits, all splits as one batched network.

    One JSON line per (method, dataset, split) is appended to the results file; a killed run resumes where it was.
    """
    chosen_tables = names(datasets, TABLES, "--datasets")
    chosen_methods = names(methods, tuple(METHODS["table1"]), "--methods")
    [form] = names(form, FORMATS, "--format")
    if show:
        say(render(summarise(results_file.read(out)), form))
        return
    torch.set_num_threads(threads)
    missing = tasks(chosen_tables, chosen_methods, out=out, n_splits=splits, seed=seed)
    with waiting(f"{len(missing)} tables to run, {jobs} at once") if missing and (jobs > 1 or ray) else nullcontext():
        for task, earned in run(
            Table1(vmg.__version__),
            missing,
            out=out,
            jobs=jobs,
            threads=threads,
            ray_address=ray_address(ray),
            watch=TrainingBar,
        ):
            seconds = sum(record["seconds"] for record in earned)
            say_aside(f"{task.dataset}: {task.method}, {len(earned)} splits in {seconds:.0f} s")
    lines = [
        line
        for line in results_file.read(out)
        if line["dataset"] in chosen_tables and line["method"] in chosen_methods and line["seed"] == seed
    ]
    say(render(summarise(lines), form))

"""``vmg reproduce``: the paper's experiments."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer

import vmg
from vmg.cli.output import say, say_aside
from vmg.data import TABLES
from vmg.experiments import records, table1
from vmg.experiments.recipes import METHODS
from vmg.experiments.summary import FORMATS, render, summarise

__all__ = ["reproduce"]

reproduce = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Run the paper's experiments and print its figures beside ours.",
)


@reproduce.command("list")
def list_methods() -> None:
    """Name the methods."""
    for method in METHODS.values():
        say(f"{method.name:<12} {method.summary}")


def _names(text: str, known: tuple[str, ...], option: str) -> list[str]:
    chosen = text.split(",")
    unknown = [name for name in chosen if name not in known]
    if unknown:
        raise typer.BadParameter(f"must be among {', '.join(known)}; got {', '.join(unknown)}", param_hint=option)
    return chosen


@reproduce.command("table1", epilog="Example: `vmg reproduce table1 --datasets yacht,boston --methods vmg,vmg-paper`")
def table1_command(
    datasets: Annotated[str, typer.Option(metavar="NAMES", help="Tables, separated by commas.")] = ",".join(
        TABLES[:-1]
    ),
    methods: Annotated[str, typer.Option(metavar="NAMES", help="Methods, separated by commas.")] = "vmg",
    splits: Annotated[int | None, typer.Option(min=1, help="Only the first splits of each table.")] = None,
    seed: Annotated[int, typer.Option(help="Of training.")] = 0,
    threads: Annotated[int, typer.Option(min=1, help="Threads of PyTorch.")] = 2,
    out: Annotated[Path, typer.Option(help="Results file; what is in it already is not run again.")] = Path(
        "results/table1.jsonl"
    ),
    form: Annotated[str, typer.Option("--format", metavar="FORMAT", help=f"One of {', '.join(FORMATS)}.")] = "markdown",
) -> None:
    """Test RMSE and log-likelihood on the regression tables, standard splits, all splits as one batched network.

    One JSON line per (method, dataset, split) is appended to the results file; a killed run resumes where it was.
    """
    chosen_tables = _names(datasets, TABLES, "--datasets")
    chosen_methods = _names(methods, tuple(METHODS), "--methods")
    [form] = _names(form, FORMATS, "--format")
    torch.set_num_threads(threads)
    for dataset in chosen_tables:
        for method in chosen_methods:
            say_aside(f"{dataset}: {method} ...")
            earned = list(table1.run([dataset], [method], out=out, n_splits=splits, seed=seed, version=vmg.__version__))
            if earned:
                say_aside(f"{dataset}: {method}, {len(earned)} splits in {sum(r['seconds'] for r in earned):.0f} s")
    lines = [
        line
        for line in records.read(out)
        if line["dataset"] in chosen_tables and line["method"] in chosen_methods and line["seed"] == seed
    ]
    say(render(summarise(lines), form))

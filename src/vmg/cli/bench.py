"""``vmg bench``: the speed benchmarks of a checkout."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

import vmg
from vmg.cli.output import print_json, say, say_aside

__all__ = ["BENCHMARKS", "bench_command"]

BENCHMARKS = {
    "step": "one training step over a plain network's",
    "predict": "samples in one pass, sampling-free moments, the folded mean network",
    "peers": "one training step of other Bayesian networks",
    "scaling": "a step against width, pseudo-points and rows; draws figures",
    "replicas": "many splits as one batched network",
    "memory": "peak memory of training over a plain network's",
}


def benchmark_folder() -> Path:
    """The scripts beside this package's source; they are no part of an installed package."""
    folder = Path(vmg.__file__).resolve().parents[2] / "benchmarks"
    if not (folder / "measuring.py").is_file():
        raise typer.BadParameter(
            "vmg bench needs a checkout of the repository, installed with pip install -e; "
            f"there are no benchmarks in {folder}"
        )
    return folder


def bench_command(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAMES]...", help=f"Among {', '.join(BENCHMARKS)}.", show_default="all"),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Tiny sizes: shows that it runs, measures nothing.")] = False,
    threads: Annotated[int, typer.Option(min=1, help="Threads of PyTorch.")] = 2,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
) -> None:
    """Measure speed and memory against plain networks and other libraries; minutes. Needs a checkout.

    Runs the scripts in `benchmarks/`, each in a process of its own, in the current folder.
    """
    chosen = names or list(BENCHMARKS)
    unknown = [name for name in chosen if name not in BENCHMARKS]
    if unknown:
        raise typer.BadParameter(f"must be among {', '.join(BENCHMARKS)}; got {', '.join(unknown)}", param_hint="NAMES")
    folder = benchmark_folder()
    results = {}
    for name in chosen:
        command = [sys.executable, str(folder / f"{name}.py"), "--threads", str(threads)]
        command += ["--quick"] * quick + ["--json"] * as_json
        if not as_json:
            say(f"{name}: {BENCHMARKS[name]}")
        sys.stdout.flush()
        done = subprocess.run(command, stdout=subprocess.PIPE if as_json else None, text=True, check=False)
        if done.returncode:
            say_aside(f"{name} failed")
            raise typer.Exit(1)
        if as_json:
            results[name] = json.loads(done.stdout)
    if as_json:
        print_json(results)

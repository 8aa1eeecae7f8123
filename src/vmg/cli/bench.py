"""``vmg bench``: the speed benchmarks of a checkout."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

import vmg
from vmg.cli.output import print_json, say, say_aside

__all__ = ["BENCHMARKS", "bench_command"]

BENCHMARKS = {
    "step": "One training step over a plain network's",
    "peers": "One training step of other Bayesian networks",
    "predict": "Prediction: samples in one pass, the folded mean network",
    "replicas": "Many splits as one batched network",
    "memory": "Peak memory of training over a plain network's",
    "scaling": "Scaling: a step against width, pseudo-points and rows",
    "fit_time": "Fit time with defaults",
}
DRAWING = ("scaling",)  # those with figures, and so with --out


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
    write: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write one Markdown page with all tables here, and figures beside it."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
) -> None:
    """Measure speed and memory against plain networks and other libraries; minutes. Needs a checkout.

    Runs the scripts in `benchmarks/`, each in a process of its own, in the current folder.
    """
    chosen = names or list(BENCHMARKS)
    unknown = [name for name in chosen if name not in BENCHMARKS]
    if unknown:
        raise typer.BadParameter(f"must be among {', '.join(BENCHMARKS)}; got {', '.join(unknown)}", param_hint="NAMES")
    if write is not None and as_json:
        raise typer.BadParameter("must come without --json; got both", param_hint="--write")
    if write is not None and not write.absolute().parent.is_dir():
        raise typer.BadParameter(f"must be in a folder that exists; there is no {write.parent}", param_hint="--write")
    folder = benchmark_folder()
    options = ["--threads", str(threads), *["--quick"] * quick]
    if write is not None:
        _write(write, chosen, folder, options, quick=quick, threads=threads)
        return
    results = {}
    for name in chosen:
        if not as_json:
            say(f"{name}: {BENCHMARKS[name]}")
        sys.stdout.flush()
        command = [sys.executable, str(folder / f"{name}.py"), *options, *["--json"] * as_json]
        done = subprocess.run(command, stdout=subprocess.PIPE if as_json else None, text=True, check=False)
        if done.returncode:
            say_aside(f"{name} failed")
            raise typer.Exit(1)
        if as_json:
            results[name] = json.loads(done.stdout)
    if as_json:
        print_json(results)


def _write(path: Path, chosen: list[str], folder: Path, options: list[str], *, quick: bool, threads: int) -> None:
    """Run benchmarks and write their page; it is written anew after each, so that a later failure loses nothing."""
    from vmg.cli.bench_document import Section, benchmark_context, document, machine_facts

    everything = list(BENCHMARKS) == chosen
    whole = ["vmg", "bench", *([] if everything else chosen), *options, "--write", os.fspath(path)]
    sections: list[Section] = []
    failed = []
    for name in chosen:
        say(f"{name}: {BENCHMARKS[name]}")
        own = [*options, *(["--out", os.fspath(path.parent)] if name in DRAWING else [])]
        script = folder / f"{name}.py"
        done = subprocess.run([sys.executable, str(script), *own], stdout=subprocess.PIPE, text=True, check=False)
        output = done.stdout
        if done.returncode:
            failed.append(name)
            say_aside(f"{name} failed")
            output = "It failed, and there are no numbers."
        say(output)
        figures = [] if done.returncode else _figures(path.parent, name)
        command = shlex.join(["python", f"benchmarks/{name}.py", *own])
        sections.append(Section(BENCHMARKS[name], command, benchmark_context(script), output, figures))
        path.write_text(document(sections, shlex.join(whole), machine_facts(threads), quick=quick), encoding="utf-8")
    if failed:
        raise typer.Exit(1)


def _figures(folder: Path, name: str) -> list[str]:
    """The files that a benchmark drew, in the order in which it did."""
    return [file.name for file in sorted(folder.glob(f"{name}_*.png"), key=lambda file: file.stat().st_mtime_ns)]

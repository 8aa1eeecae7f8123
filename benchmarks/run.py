"""Run the speed benchmarks, each in a process of its own, and write their tables into one page.

A section of the page begins with the benchmark's own docstring, so that the explanation of a number stands beside the
code that measures it. The page is written anew after each benchmark, so that a later failure loses nothing; sections of
benchmarks that are not named stay as they are.

    python benchmarks/run.py [step predict ...] [--threads 2] [--quick] [--write benchmarks/RESULTS.md]
"""

from __future__ import annotations

import argparse
import ast
import os
import platform
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

import torch

from vmg.fused import library

BENCHMARKS = {
    "step": "One training step over a plain network's",
    "predict": "Prediction: samples in one pass, the folded mean network",
    "replicas": "Many splits as one batched network",
    "memory": "Peak memory of training over a plain network's",
}
FOLDER = Path(__file__).parent
WIDTH = 120  # of lines of prose


def section(name: str, options: Sequence[str], output: str) -> str:
    """A benchmark's title, command, docstring and output, in Markdown."""
    command = shlex.join(["python", f"benchmarks/{name}.py", *options])
    text = ast.get_docstring(ast.parse((FOLDER / f"{name}.py").read_text(encoding="utf-8"))) or ""
    paragraphs = [wrap(markdown_code(part)) for part in text.split("\n\n") if not part.startswith("    ")]
    return "\n\n".join([f"## {BENCHMARKS[name]}", f"`{command}`", *paragraphs, output.strip()])


def markdown_code(text: str) -> str:
    """Write ``code`` and :role:`names` of a docstring as `code`."""
    return re.sub(r"``([^`]+)``", r"`\1`", re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text))


def wrap(text: str) -> str:
    return textwrap.fill(" ".join(text.split()), WIDTH, break_long_words=False, break_on_hyphens=False)


def machine_facts(threads: int) -> str:
    """The machine and the versions of a run, in one sentence."""
    gpu = "a GPU, not used" if torch.cuda.is_available() else "no GPU"
    kind = "compiled kernels" if library.available() else "no compiled kernels"
    cores, versions = os.cpu_count() or 1, f"Python {platform.python_version()}, PyTorch {torch.__version__}"
    return f"{cores} core{'s' * (cores > 1)} ({platform.machine()}), {gpu}, {versions}, {kind}, threads: {threads}."


def page(sections: Sequence[str], command: str, facts: str, *, quick: bool) -> str:
    """All sections under a heading that says how the page was made."""
    made = (
        f"Written by `{command}`; change the benchmarks, not this page. {facts} Ratios say more than times, which are "
        "this machine's. The compared take turns in one run, except for memory."
    )
    warning = ["**Tiny sizes (`--quick`): this shows that the benchmarks run, and measures nothing.**"] * quick
    return "\n\n".join(["# Measured", wrap(made), *warning, *sections]) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"among {', '.join(BENCHMARKS)}; all unless given")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="tiny sizes: shows that they run, measures nothing")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write a page in Markdown there")
    a = parser.parse_args()
    if unknown := sorted(set(a.names) - set(BENCHMARKS)):
        parser.error(f"names must be among {', '.join(BENCHMARKS)}; got {', '.join(unknown)}")
    options = ["--threads", str(a.threads), *["--quick"] * a.quick]
    whole = shlex.join(
        ["python", "benchmarks/run.py", *a.names, *options, *(["--write", str(a.write)] * bool(a.write))]
    )
    old = a.write.read_text(encoding="utf-8") if a.names and a.write and a.write.exists() else ""
    parts = {part.partition("\n")[0]: f"## {part.strip()}" for part in old.split("\n## ")[1:]}
    sections, failed = {name: parts[title] for name, title in BENCHMARKS.items() if title in parts}, 0
    for name in a.names or BENCHMARKS:
        print(f"{name}: {BENCHMARKS[name]}", flush=True)
        command = [sys.executable, str(FOLDER / f"{name}.py"), *options]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        failed += done.returncode != 0
        output = "It failed, and there are no numbers." if done.returncode else done.stdout
        print(output, flush=True)
        sections[name] = section(name, options, output)
        if a.write:
            made = [sections[name] for name in BENCHMARKS if name in sections]
            a.write.write_text(page(made, whole, machine_facts(a.threads), quick=a.quick), encoding="utf-8")
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())

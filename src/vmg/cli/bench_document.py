"""The document that ``vmg bench --write`` makes: a section for each benchmark, in Markdown.

A section's words are the benchmark's own docstring, so that what is said of a number stands beside the code that
measures it.
"""

from __future__ import annotations

import ast
import os
import platform
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from vmg.fused import library

__all__ = ["Section", "benchmark_context", "document", "machine_facts"]

WIDTH = 120  # of lines of prose


@dataclass(frozen=True)
class Section:
    """One benchmark: what it is, the command that ran, and what that printed."""

    title: str
    command: str
    context: str
    output: str
    figures: Sequence[str] = ()  # files, as seen from the document


def benchmark_context(script: Path) -> str:
    """The docstring of a benchmark as Markdown, without its usage lines."""
    text = ast.get_docstring(ast.parse(script.read_text(encoding="utf-8"))) or ""
    paragraphs = [part for part in text.split("\n\n") if not part.startswith("    ")]
    return "\n\n".join(_wrap(_markdown(part)) for part in paragraphs)


def _markdown(text: str) -> str:
    """``code`` and :role:`names` of docstrings as `code`."""
    text = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text)
    return re.sub(r"``([^`]+)``", r"`\1`", text)


def _wrap(text: str) -> str:
    return textwrap.fill(" ".join(text.split()), WIDTH, break_long_words=False, break_on_hyphens=False)


def machine_facts(threads: int) -> str:
    """What the numbers were measured on, in one sentence."""
    gpu = "a GPU, not used" if torch.cuda.is_available() else "no GPU"
    kind = "compiled kernels" if library.available() else "no compiled kernels"
    cores, versions = os.cpu_count() or 1, f"Python {platform.python_version()}, PyTorch {torch.__version__}"
    return f"{cores} core{'s' * (cores > 1)} ({platform.machine()}), {gpu}, {versions}, {kind}, threads: {threads}."


def document(sections: Sequence[Section], command: str, facts: str, *, quick: bool) -> str:
    """All sections as one page, which says how it was made."""
    parts = [
        "# Measured",
        _wrap(
            f"Written by `{command}`; change the benchmarks, not this page. {facts} Ratios say more than times, which "
            "are this machine's. The compared take turns in one run, except for memory, fit time and numbers of rows."
        ),
    ]
    if quick:
        parts.append("**Tiny sizes (`--quick`): this shows that the benchmarks run, and measures nothing.**")
    for section in sections:
        parts += [f"## {section.title}", f"`{section.command}`", section.context, section.output.strip()]
        parts += [f"![{section.title}]({figure})" for figure in section.figures]
    return "\n\n".join(part for part in parts if part) + "\n"

"""Summaries of results as a table in a document, and means with standard errors."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence

import numpy as np

from vmg_paper.experiments.results_file import Record

__all__ = ["FORMATS", "mean_and_error", "typeset"]

FORMATS = ("markdown", "latex", "json")
LATEX = (("±", r"$\pm$"), ("%", r"\%"), ("−", "$-$"))


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """The mean and its standard error, which is 0 for a single value."""
    error = np.std(values, ddof=1) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return float(np.mean(values)), float(error)


def typeset(
    summary: Sequence[Record],
    header: Sequence[str],
    cells: Callable[[Record], Sequence[str]],
    form: str,
    *,
    n_words: int = 2,
) -> str:
    """A table in Markdown or LaTeX, whose first ``n_words`` columns are words, or the rows as JSON."""
    if form not in FORMATS:
        raise ValueError(f"format must be one of {FORMATS}; got {form!r}")
    if form == "json":
        return json.dumps(list(summary), indent=1)
    rows = [cells(row) for row in summary]
    if form == "markdown":
        return "\n".join(f"| {' | '.join(row)} |" for row in (header, ("---",) * len(header), *rows))
    body = [" & ".join(row) + r" \\" for row in (header, *rows)]
    for character, name in LATEX:
        body = [line.replace(character, name) for line in body]
    return "\n".join([rf"\begin{{tabular}}{{{'l' * n_words}{'r' * (len(header) - n_words)}}}", *body, r"\end{tabular}"])

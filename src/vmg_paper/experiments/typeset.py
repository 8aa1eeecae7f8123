"""Rows of cells as a table in a document."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["FORMATS", "check_format", "typeset"]

FORMATS = ("markdown", "latex", "json")
LATEX = (("±", r"$\pm$"), ("%", r"\%"), ("−", "$-$"))


def check_format(form: str) -> None:
    """Raise unless ``form`` is one of the formats."""
    if form not in FORMATS:
        raise ValueError(f"format must be one of {FORMATS}; got {form!r}")


def typeset(header: Sequence[str], rows: Sequence[Sequence[str]], form: str, *, n_words: int = 2) -> str:
    """A table in Markdown or LaTeX; its first ``n_words`` columns are words, the rest numbers."""
    if form == "markdown":
        return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, ("---",) * len(header), *rows))
    body = [" & ".join(cells) + r" \\" for cells in (header, *rows)]
    for character, name in LATEX:
        body = [line.replace(character, name) for line in body]
    return "\n".join([rf"\begin{{tabular}}{{{'l' * n_words}{'r' * (len(header) - n_words)}}}", *body, r"\end{tabular}"])

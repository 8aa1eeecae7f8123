"""Tables in Markdown, and pages whose tables a command writes between two markers."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def markdown(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table."""
    header = list(header)
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def fill(page: Path, name: str, text: str) -> None:
    """Put ``text`` between the page's markers ``<!-- name -->`` and ``<!-- end of name -->``."""
    start, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    old = page.read_text(encoding="utf-8")
    before, found_start, rest = old.partition(start)
    _, found_end, after = rest.partition(end)
    if not (found_start and found_end):
        raise ValueError(f"{page} must hold the markers {start} and {end}; got neither or one")
    page.write_text(f"{before}{start}\n{text}\n{end}{after}", encoding="utf-8")

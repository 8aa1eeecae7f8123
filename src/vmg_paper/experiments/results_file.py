"""Results as JSON lines: appended as they are earned, so that a killed run resumes where it was."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

__all__ = ["append", "read"]

Record = dict[str, Any]


def read(path: Path) -> list[Record]:
    """All whole lines of a results file; a last line that a kill cut short is left out."""
    if not path.exists():
        return []
    records = []
    lines = path.read_text().split("\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError as error:
            if number < len(lines):
                raise ValueError(f"{path}, line {number} is not JSON: {error}") from error
    return records


def append(path: Path, records: Iterable[Record]) -> None:
    """Add records, each on a line of its own."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(record) + "\n" for record in records)
    cut_short = path.exists() and path.stat().st_size > 0 and not path.read_bytes().endswith(b"\n")
    if cut_short:  # drop what a kill left half-written
        whole = path.read_bytes()
        path.write_bytes(whole[: whole.rfind(b"\n") + 1])
    with path.open("a") as file:
        file.write(text)

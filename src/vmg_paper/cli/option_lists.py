"""Options that are lists of names or numbers."""

from __future__ import annotations

from collections.abc import Sequence

import typer

__all__ = ["names", "whole_numbers"]


def names(text: str, known: Sequence[str], option: str) -> list[str]:
    """Names separated by commas, each of them known."""
    chosen = text.split(",")
    unknown = [name for name in chosen if name not in known]
    if unknown:
        raise typer.BadParameter(f"must be among {', '.join(known)}; got {', '.join(unknown)}", param_hint=option)
    return chosen


def whole_numbers(text: str, option: str, *, low: int, high: int) -> list[int]:
    """Different whole numbers from ``low`` to ``high``, separated by commas."""
    parts = text.split(",")
    good = all(part.strip().isdecimal() and low <= int(part) <= high for part in parts) and len(parts) == len(
        set(parts)
    )
    if not good:
        raise typer.BadParameter(
            f"must be different whole numbers from {low} to {high} such as 1,2; got '{text}'", param_hint=option
        )
    return [int(part) for part in parts]

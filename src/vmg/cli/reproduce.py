"""``vmg reproduce``: the paper's experiments, which are a package of their own."""

from __future__ import annotations

import typer

__all__ = ["reproduce"]


def reproduce(context: typer.Context) -> None:
    """Run the paper's experiments and print its figures beside ours."""
    from vmg_paper.cli import reproduce as experiments

    if code := experiments(list(context.args), prog_name="vmg reproduce", standalone_mode=False):
        raise typer.Exit(code)

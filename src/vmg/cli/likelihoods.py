"""``--likelihood``: how a numeric target scatters."""

from __future__ import annotations

from typing import Annotated

import typer

from vmg.cli.options import NETWORK

__all__ = ["LIKELIHOODS", "LikelihoodOption", "require_likelihood"]

LIKELIHOODS = (
    *("auto", "student", "normal", "lognormal", "mixture"),
    *("gamma", "poisson", "negative-binomial", "beta", "ordinal"),
)
PAIRED = ("binomial", "censored")  # two numbers a row, which one column cannot hold

LikelihoodOption = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help=f"How a number scatters: {', '.join(LIKELIHOODS)}. auto chooses on held-out training rows.",
        rich_help_panel=NETWORK,
    ),
]


def require_likelihood(name: str, task: str | None) -> str:
    """The name itself; a mistake of the user where there is no such likelihood, or the task has none."""
    if name in PAIRED:
        raise typer.BadParameter(
            f"{name} takes two numbers a row; use TableRegressor(likelihood={name!r}) in Python",
            param_hint="--likelihood",
        )
    if name not in LIKELIHOODS:
        raise typer.BadParameter(f"must be one of {', '.join(LIKELIHOODS)}; got {name}", param_hint="--likelihood")
    if name != "auto" and task == "classification":
        raise typer.BadParameter("is for numbers; the task is classification", param_hint="--likelihood")
    return name

"""The figures of ``vmg reproduce``: toy problems with each band's distance to the truth."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from vmg.cli.output import say, say_aside, waiting
from vmg.files import append_lines, read_lines, replacing
from vmg_paper.experiments import figure1, figure2
from vmg_paper.experiments.results_file import fill
from vmg_paper.experiments.toys import ToyResult, render_lines, run_of

__all__ = ["RESULTS", "figure1_command", "figure2_command"]

RESULTS = "results of vmg reproduce"
"""Name of the part of a page that a command writes."""

Out = Annotated[Path, typer.Option(metavar="PNG", help="Where to draw the figure.")]
Seed = Annotated[int, typer.Option(help="Of the data and of every method.")]
Prior = Annotated[float, typer.Option(min=1e-3, help="Standard deviation of the weights before the data.")]
Kept = Annotated[Path | None, typer.Option("--record", metavar="FILE", help="Keep the numbers there, as JSON lines.")]
Page = Annotated[Path | None, typer.Option("--write", metavar="PAGE", help="Put the kept numbers there, as tables.")]


def figure1_command(out: Out = Path("figure1.png"), seed: Seed = 0, kept: Kept = None, page: Page = None) -> None:
    """Predictive bands on twenty points of x³: the paper's Figure 1, honest variants and the default, HMC as the truth.

    Prints how far each band is from the true one: means in true standard deviations, widths as the factor by which
    they differ, averaged over the x where there are data and over those where there are none. Takes a few minutes.
    """
    result = _fit("figure1", figure1.run, seed=seed)
    _draw(result, out, widths=[3], height=(-160.0, 160.0), columns=4, target_label="truth, $x^3$")
    _keep(result.lines(figure="figure1", seed=seed, prior_scale=figure1.PRIOR_SCALE), kept, page)


def figure2_command(
    out: Out = Path("figure2.png"),
    seed: Seed = 0,
    prior: Prior = figure2.PRIOR_SCALE,
    kept: Kept = None,
    page: Page = None,
) -> None:
    """Predictive bands on Osband's toy: PBP, the default, and matrix Gaussians of three activations, each with its HMC.

    Prints how far each band is from that of HMC on the same network, as figure1 does. Takes a few minutes.
    """
    result = _fit("figure2", partial(figure2.run, prior_scale=prior), seed=seed)
    _draw(result, out, widths=[1, 2], height=(-4.0, 5.0), columns=4, target_label="truth")
    _keep(result.lines(figure="figure2", seed=seed, prior_scale=prior), kept, page)


def _fit(name: str, run: Any, *, seed: int) -> ToyResult:
    torch.set_num_threads(1)  # networks this small gain nothing from more
    with waiting(f"Fitting every method of {name}"):
        result: ToyResult = run(seed=seed, tell=lambda method: say_aside(f"{method} ..."))
    return result


def _draw(result: ToyResult, out: Path, **options: Any) -> None:
    from vmg_paper.figures import draw_band_figure  # matplotlib takes its time

    out.parent.mkdir(parents=True, exist_ok=True)
    with replacing(out) as temporary:
        draw_band_figure(result, temporary, **options)
    say(f"Figure: {out}")


def _keep(lines: list[dict[str, Any]], kept: Path | None, page: Path | None) -> None:
    """Print the distances; replace the same run in the file of kept numbers, and the tables of a page."""
    say(render_lines(lines))
    if kept is None:
        return
    others = [line for line in read_lines(kept) if run_of(line) != run_of(lines[0])]
    lines = sorted([*others, *lines], key=run_of)
    with replacing(kept) as temporary:
        append_lines(temporary, lines)
    if page is not None:
        fill(page, RESULTS, render_lines(lines))

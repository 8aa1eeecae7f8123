"""The figures of ``vmg reproduce``: toy problems with each band's distance to the truth, and Table 2 as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from vmg.cli.output import print_json, print_table, say, say_aside, waiting
from vmg.files import append_lines, read_lines, replacing
from vmg_paper.experiments import figure1, figure2
from vmg_paper.experiments.published import PAPER_TABLE2
from vmg_paper.experiments.results_file import Record, write_tables
from vmg_paper.experiments.table2 import MEAN, common_size, foremost
from vmg_paper.experiments.table2_methods import n_weights
from vmg_paper.experiments.toys import ToyResult, record_lines, render_lines

__all__ = ["draw_table2", "figure1_command", "figure2_command"]

FORMATS = ("table", "json")
TITLE = "Distance of each band to the true one, where there are data and where there are none"
HEADER = ("", "truth", "mean, data", "mean, none", "width, data", "width, none")

Out = Annotated[Path, typer.Option(metavar="PNG", help="Where to draw the figure.")]
Seed = Annotated[int, typer.Option(help="Of the data and of every method.")]
Form = Annotated[str, typer.Option("--format", metavar="FORMAT", help=f"One of {', '.join(FORMATS)}.")]
Kept = Annotated[Path | None, typer.Option("--record", metavar="FILE", help="Keep the numbers there, as JSON lines.")]
Page = Annotated[Path | None, typer.Option("--write", metavar="PAGE", help="Put the kept numbers there, as tables.")]


def figure1_command(
    out: Out = Path("figure1.png"), seed: Seed = 0, form: Form = "table", kept: Kept = None, page: Page = None
) -> None:
    """Predictive bands on twenty points of x³: the paper's Figure 1, honest variants and the default, HMC as the truth.

    Prints how far each band is from the true one: means in true standard deviations, widths as |log ratio|, averaged
    over the x where there are data and over those where there are none. Takes a few minutes.
    """
    _check_format(form)
    with waiting("Fitting every method of figure 1"):
        result = figure1.run(seed=seed, tell=_tell)
    _keep("figure1", result, kept, page)
    _show(result, out, form, widths=[3], height=(-160.0, 160.0), columns=4, target_label="truth, $x^3$")


def figure2_command(
    out: Out = Path("figure2.png"), seed: Seed = 0, form: Form = "table", kept: Kept = None, page: Page = None
) -> None:
    """Predictive bands on Osband's toy: PBP, the default, and matrix Gaussians of three activations, each with its HMC.

    Prints how far each band is from that of HMC on the same network, as figure1 does. Takes a few minutes.
    """
    _check_format(form)
    with waiting("Fitting every method of figure 2"):
        result = figure2.run(seed=seed, tell=_tell)
    _keep("figure2", result, kept, page)
    _show(result, out, form, widths=[1, 2], height=(-4.0, 5.0), columns=4, target_label="truth")


def _check_format(form: str) -> None:
    if form not in FORMATS:
        raise typer.BadParameter(f"must be among {', '.join(FORMATS)}; got {form}", param_hint="--format")
    torch.set_num_threads(1)  # networks this small gain nothing from more


def _tell(name: str) -> None:
    say_aside(f"{name} ...")


def _keep(figure: str, result: ToyResult, kept: Path | None, page: Path | None) -> None:
    """Replace the figure's lines in the file of kept numbers, and the tables of a page by all that it holds."""
    if kept is None:
        return
    others = [line for line in read_lines(kept) if line["figure"] != figure]
    lines = sorted([*others, *record_lines(figure, result.document())], key=lambda line: str(line["figure"]))
    with replacing(kept) as temporary:
        append_lines(temporary, lines)
    if page is not None:
        write_tables(page, render_lines(lines))


def _show(result: ToyResult, out: Path, form: str, **options: Any) -> None:
    """Draw the figure and print the distances."""
    from vmg_paper.figures import draw_band_figure  # matplotlib takes its time

    out.parent.mkdir(parents=True, exist_ok=True)
    with replacing(out) as temporary:
        draw_band_figure(result, temporary, **options)
    if form == "json":
        print_json({"figure": str(out), **result.document()})
        return
    rows = [
        (d.name, d.truth, *(f"{v:.2f}" for v in (d.mean_inside, d.mean_outside, d.log_std_inside, d.log_std_outside)))
        for d in result.distances()
    ]
    print_table(TITLE, HEADER, rows)
    for truth in result.truths:
        say(f"{truth.name}: {truth.note}")
    say(f"Figure: {out}")


def draw_table2(summary: Sequence[Record], path: Path) -> None:
    """Draw all methods of the results and of the paper, with the foremost run of each method and size."""
    from vmg_paper.figures import MethodPicture, draw_table2_figure  # matplotlib takes its time

    at_size = common_size(summary)
    shown = foremost(summary)
    pictures = []
    for name in dict.fromkeys([*(row["method"] for row in shown), *(method for method, _ in PAPER_TABLE2)]):
        rows = [row for row in shown if row["method"] == name]
        errors = {row["size"]: row["error_percent"] for row in rows if row["prediction"] == MEAN}
        paper = {size: error for (method, size), error in PAPER_TABLE2.items() if method == name and size}
        anywhere = PAPER_TABLE2.get((name, ""))
        there = [row for row in rows if row["size"] == at_size]
        if not there:
            pictures.append(MethodPicture(name, errors, paper, paper_error_anywhere=anywhere))
            continue
        widest = there[-1]  # the average over most draws, where there is one
        accuracy = [100 - error for error in widest["rejection"]["error_percent"]]
        auroc = {name: kinds["entropy"] for name, kinds in widest["auroc"].items()}
        rejection = widest["rejection"]["rates_percent"], accuracy
        pictures.append(MethodPicture(name, errors, paper, rejection, auroc, anywhere))
    sizes = sorted({size for one in pictures for size in (*one.errors, *one.paper_errors)}, key=n_weights)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary, waiting("Drawing"):
        draw_table2_figure(pictures, sizes, temporary, at_size=at_size)
    say_aside(f"Figure: {path}")

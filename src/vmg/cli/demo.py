"""``vmg demo``: the paper's toy problem and a real table, from data to figure, scores and a saved model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from vmg.cli import options
from vmg.cli.output import TrainingBar, print_table, say

__all__ = ["demo"]

SEED, COVERAGE, HELD_OUT = 0, 0.9, 0.2
GRID = (-6.0, 6.0, 241)  # of the figure; data are in [-4, 4]


def demo(
    out: Annotated[Path, options.output(metavar="FOLDER", help="Where the figure and the model go.")] = Path("demo"),
    quiet: options.QuietOption = False,
    debug: options.DebugOption = False,
) -> None:
    """Fit the toy problem of the paper's Figure 1 and scikit-learn's diabetes table; some seconds."""
    import numpy as np
    import pandas as pd
    from sklearn.datasets import load_diabetes

    from vmg.estimators import TableModel
    from vmg.files import replacing
    from vmg.tables import write_table
    from vmg_paper.data.tables import cubic
    from vmg_paper.experiments.toys import Band, ToyResult
    from vmg_paper.figures import draw_band_figure

    out.mkdir(parents=True, exist_ok=True)
    toy = [pd.DataFrame({"x": x[:, 0], "y": y}) for x, y in (cubic(seed=SEED), cubic(500, seed=SEED + 1))]
    whole = load_diabetes(as_frame=True, scaled=False).frame.rename(columns={"target": "progression"})
    whole = whole.iloc[np.random.default_rng(SEED).permutation(len(whole))].reset_index(drop=True)
    n_fit = len(whole) - round(HELD_OUT * len(whole))
    models, lines = {}, []
    for name, target, rows, held in (("toy, x³", "y", *toy), ("diabetes", "progression", whole[:n_fit], whole[n_fit:])):
        with TrainingBar(name, quiet=quiet) as bar:
            model = TableModel.fit(rows, target, options={"random_state": SEED}, callbacks=[bar])
        scores, seconds = model.evaluate(held, COVERAGE), model.estimator.history_.last.seconds
        shown = (f"{scores['rmse']:.2f}", f"{scores['log_likelihood']:.2f}", f"{scores['coverage']:.0%}")
        lines.append([name, str(len(rows)), str(len(held)), *shown, f"{seconds:.1f}"])
        models[name] = model
    grid = np.linspace(*GRID)
    band = Band.of("default", grid, models["toy, x³"].pred_dist(pd.DataFrame({"x": grid})))
    drawn = ToyResult(toy[0]["x"].to_numpy(), toy[0]["y"].to_numpy(), lambda x: x**3, [band], [])
    with replacing(out / "figure1.png") as temporary:
        draw_band_figure(drawn, temporary, widths=[3], height=(-160, 160), columns=1, target_label="truth, $x^3$")
    models["diabetes"].save(out / "diabetes.vmg")
    write_table(whole[n_fit:], out / "diabetes_test.csv")
    if not quiet:
        title = f"Scores on held-out rows; coverage of the {COVERAGE:.0%} interval"
        print_table(title, ["", "rows", "held out", "RMSE", "log-likelihood", "coverage", "seconds"], lines)
        say(f"Figure:  {out / 'figure1.png'}")
        say(f"Model:   {out / 'diabetes.vmg'}")
        say(f"Try it:  vmg predict {out / 'diabetes.vmg'} {out / 'diabetes_test.csv'}")

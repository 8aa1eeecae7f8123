"""``vmg demo``: the paper's toy problem and a real table, from data to figure, scores and a saved model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vmg.cli.options import DebugOption, QuietOption
from vmg.cli.output import TrainingBar, print_table, say

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["demo"]

SEED = 0
COVERAGE = 0.9
TOY_TEST_ROWS = 500
RANGE = (-6.0, 6.0)  # drawn; data are in [-4, 4]
DIABETES_TARGET = "progression"
HELD_OUT = 0.2


def demo(
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FOLDER", help="Where the figure and the model go.")
    ] = Path("demo"),
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Fit the toy problem of the paper's Figure 1 and scikit-learn's diabetes table; some seconds."""
    import numpy as np

    from vmg import TableRegressor, metrics
    from vmg.estimators import TableModel
    from vmg.files import replacing
    from vmg.report.panel import draw_toy_figure
    from vmg.tables import TableError, write_table
    from vmg_paper.data.tables import cubic

    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TableError(f"cannot make the folder {out}: {error.strerror}") from error
    figure_path, model_path, rows_path = (out / n for n in ("figure1.png", "diabetes.vmg", "diabetes_test.csv"))

    x, y = cubic(seed=SEED)
    with TrainingBar("Toy problem of Figure 1", quiet=quiet) as bar:
        toy = TableRegressor(random_state=SEED).fit(x, y, callbacks=[bar])
    grid = np.linspace(*RANGE, 241)
    drawn = toy.pred_dist(grid[:, None])
    with replacing(figure_path) as temporary:
        draw_toy_figure(grid, drawn, x[:, 0], y, temporary)

    fit_rows, test_rows = diabetes_tables()
    with TrainingBar("Diabetes table", quiet=quiet) as bar:
        diabetes = TableModel.fit(fit_rows, DIABETES_TARGET, options={"random_state": SEED}, callbacks=[bar])
    diabetes.save(model_path)
    write_table(test_rows, rows_path)
    if quiet:
        return

    x_test, y_test = cubic(TOY_TEST_ROWS, seed=SEED + 1)
    predicted = toy.pred_dist(x_test)
    of_toy = {
        "rmse": metrics.rmse(y_test, predicted.mean),
        "log_likelihood": metrics.log_likelihood(predicted.log_prob(y_test)),
        "coverage": metrics.interval_coverage(y_test, predicted.interval(COVERAGE)),
    }
    of_diabetes = diabetes.evaluate(test_rows, COVERAGE)
    parts = [
        ("toy, x³", len(y), len(y_test), of_toy, toy.history_.last.seconds),
        ("diabetes", len(fit_rows), len(test_rows), of_diabetes, diabetes.estimator.history_.last.seconds),
    ]
    lines = [
        [name, str(n), str(held), f"{s['rmse']:.2f}", f"{s['log_likelihood']:.2f}", f"{s['coverage']:.0%}", f"{t:.1f}"]
        for name, n, held, s, t in parts
    ]
    title = f"Scores on held-out rows; coverage of the {COVERAGE:.0%} interval"
    print_table(title, ["", "rows", "held out", "RMSE", "log-likelihood", "coverage", "seconds"], lines)
    say(f"Figure:  {figure_path}")
    say(f"Model:   {model_path}")
    say(f"Try it:  vmg predict {model_path} {rows_path}")


def diabetes_tables() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows to fit to, and a fifth of all rows held out, after a fixed shuffle."""
    import numpy as np
    from sklearn.datasets import load_diabetes

    frame = load_diabetes(as_frame=True, scaled=False).frame.rename(columns={"target": DIABETES_TARGET})
    frame = frame.iloc[np.random.default_rng(SEED).permutation(len(frame))].reset_index(drop=True)
    n_fit = len(frame) - round(HELD_OUT * len(frame))
    return frame.iloc[:n_fit], frame.iloc[n_fit:]

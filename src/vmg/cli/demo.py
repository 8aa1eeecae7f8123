"""``vmg demo``: a real table, from data to a saved model, scores and a report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from vmg.cli import options
from vmg.cli.evaluate import evaluate
from vmg.cli.output import TrainingBar, say
from vmg.cli.report import report

__all__ = ["demo"]

SEED, HELD_OUT = 0, 0.2


def demo(
    out: Annotated[Path, options.output(metavar="FOLDER", help="Where the model and the report go.")] = Path("demo"),
    quiet: options.QuietOption = False,
    debug: options.DebugOption = False,
) -> None:
    """Fit scikit-learn's diabetes table, score the model on held-out rows and write a report; some seconds."""
    from sklearn.datasets import load_diabetes

    from vmg.estimators import TableModel
    from vmg.tables import write_table

    out.mkdir(parents=True, exist_ok=True)
    model, held = out / "diabetes.vmg", out / "diabetes_test.csv"
    rows = load_diabetes(as_frame=True, scaled=False).frame.rename(columns={"target": "progression"})
    rows = rows.sample(frac=1, random_state=SEED, ignore_index=True)
    n_held = round(HELD_OUT * len(rows))
    with TrainingBar("diabetes", quiet=quiet) as bar:
        fitted = TableModel.fit(rows[n_held:], "progression", options={"random_state": SEED}, callbacks=[bar])
    fitted.save(model)
    write_table(rows[:n_held], held)
    if not quiet:
        evaluate(model, held)
    report(model, held, str(out / "report.html"), quiet=quiet)
    if not quiet:
        say(f"Model written to {model}. Next: vmg predict {model} {held}")

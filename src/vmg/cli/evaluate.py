"""``vmg evaluate``: scores of a model on rows whose target is known."""

from __future__ import annotations

from vmg.cli import options
from vmg.cli.data import load_both
from vmg.cli.output import print_json, print_table, say, waiting

__all__ = ["evaluate"]

WORTH_SAYING = 0.05  # share of rows of the fit; some tables have equal rows by chance


def evaluate(
    model: options.ModelArgument,
    data: options.DataArgument,
    decimal: options.DecimalOption = None,
    coverage: options.CoverageOption = 0.9,
    json: options.JsonOption = False,
    debug: options.DebugOption = False,
) -> None:
    """Score a model on rows whose target is known; use rows that it was not fitted to.

    Of a fleet, each row is scored by the model of its own group.
    """
    from vmg.review.comparison import SCORES
    from vmg.tables.cells import count, short

    fitted, frame = load_both(model, data, quiet=json, decimal=decimal)
    with waiting("Scoring"):
        scores = fitted.evaluate(frame, coverage)
        base_rate, trained_on = fitted.evaluate_base_rate(frame, coverage), fitted.training_share(frame)
    if json:
        about = {"stated_coverage": coverage, "base_rate": base_rate or None, "training_rows": trained_on}
        print_json({"target": fitted.target, "task": fitted.task, **scores, **about})
        return
    rows = int(scores.pop("rows"))
    beside, lines = {name: short(value) for name, value in base_rate.items()}, []
    for key, value in scores.items():
        name, meaning = SCORES[key]
        lines.append([name, short(value), beside.get(key, ""), meaning.format(coverage=coverage)])
    title = f"{fitted.task} of '{fitted.target}' on {count(rows, 'row')}"
    print_table(title, ["", "model", "base rate", ""], lines, meanings=True)
    if trained_on >= WORTH_SAYING:
        say(
            f"{trained_on:.0%} of these rows are rows that the model was fitted to: scores on them flatter it. "
            "Rows that it has not seen, or those that vmg fit held out, say how good it is."
        )

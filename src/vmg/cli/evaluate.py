"""``vmg evaluate``: scores of a model on rows whose target is known."""

from __future__ import annotations

from vmg.cli.options import CoverageOption, DataArgument, DebugOption, JsonOption, ModelArgument
from vmg.cli.output import print_json, print_scores
from vmg.cli.paths import load_both
from vmg.cli.progress import waiting

__all__ = ["evaluate"]

SCORE_MEANINGS = {
    "rmse": "root mean squared error, in the target's units",
    "r2": "share of the target's variance explained",
    "log_likelihood": "mean log density of the truth; higher is better",
    "crps": "continuous ranked probability score; lower is better",
    "coverage": "share of truths inside their intervals",
    "width": "mean width of the intervals",
    "accuracy": "share of rows whose likeliest class is right",
    "brier": "Brier score, 0 (best) to 2",
    "ece": "expected calibration error of the likeliest class",
}


def evaluate(
    model: ModelArgument,
    data: DataArgument,
    coverage: CoverageOption = 0.9,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Score a model on rows whose target is known; use rows that it was not fitted to."""
    from vmg.tables.phrases import count

    fitted, frame = load_both(model, data, quiet=json)
    with waiting("Scoring"):
        scores = fitted.evaluate(frame, coverage)
    if json:
        print_json({"target": fitted.target, "task": fitted.task, **scores, "stated_coverage": coverage})
        return
    rows = int(scores.pop("rows"))
    meanings = SCORE_MEANINGS | {"coverage": f"share of truths inside their {coverage:.0%} intervals"}
    print_scores(f"{fitted.task} of '{fitted.target}' on {count(rows, 'row')}", scores, meanings)

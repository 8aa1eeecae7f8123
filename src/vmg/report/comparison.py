"""The page of ``vmg compare``: a table, a picture of paired differences, and the verdict, in one file of HTML."""

from __future__ import annotations

from html import escape
from math import isfinite

from vmg.review.comparison import OWN, Comparison

__all__ = ["render_comparison"]

NAMES = {"rmse": "RMSE", "mae": "MAE", "crps": "CRPS", "brier": "Brier score", "log_likelihood": "log score"}
NAMES |= {"coverage": "inside interval", "worst_group": "inside, worst group"}
STYLE = """:root { color-scheme: light dark; }
body { font: 1rem/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
.wide { overflow-x: auto; } table { border-collapse: collapse; }
td, th { padding: 0.25rem 0.7rem; text-align: right; border-bottom: 1px solid #8886; }
td:first-child, th:first-child { text-align: left; } .own { font-weight: bold; }
svg { width: 100%; max-width: 46rem; height: auto; fill: currentColor; stroke: currentColor; font-size: 14px; }
svg text { stroke: none; } .better { color: #0a7d55; } .worse { color: #c0392b; }"""
WIDTH, LEFT, ROW, EDGE = 700, 160, 28, 10  # of the picture


def render_comparison(comparison: Comparison, title: str) -> str:
    """A comparison as a page."""
    rows = comparison.rows
    head = "".join(f"<th scope='col'>{escape(NAMES.get(name, name))}</th>" for name in rows[0])
    body = "".join(
        f"<tr{' class=own' * (row['method'] == OWN)}><th scope='row'>{escape(row['method'])}</th>"
        + "".join(f"<td>{value:.4g}</td>" for name, value in row.items() if name != "method")
        + "</tr>"
        for row in rows
    )
    score = "CRPS" if comparison.task == "regression" else "Brier score"
    said = "".join(f"<p>{escape(text)}</p>" for text in (comparison.advice, comparison.sentence, *comparison.notes))
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title><style>{STYLE}</style></head><body><main>
<h1>{escape(title)}</h1>
{said}
<div class="wide" tabindex="0" role="group" aria-label="Scores"><table><thead><tr>{head}</tr></thead>
<tbody>{body}</tbody></table></div>
<h2>{score} of others less that of {OWN}</h2>
<p>95 % intervals, paired by held-out row or group. To the right of the line, {OWN} is better.</p>
{_picture(comparison, f"{score} of other methods less that of {OWN}")}
<p>All methods were fitted to the same folds, each with its own defaults. Seconds are processor time.</p>
</main></body></html>
"""


def _picture(comparison: Comparison, label: str) -> str:
    """Intervals of paired differences, the method that is best in the picture first."""
    gains = sorted(comparison.gains.items(), key=lambda item: sum(item[1]))
    finite = [0.0, *(end for _, interval in gains for end in interval if isfinite(end))]
    first, scale = min(finite), (WIDTH - LEFT - 2 * EDGE) / ((max(finite) - min(finite)) or 1.0)
    middle = LEFT + EDGE - scale * first
    lines = [f"<line x1='{middle:.1f}' x2='{middle:.1f}' y1='0' y2='{ROW * len(gains)}' stroke-dasharray='4'/>"]
    for place, (name, (low, high)) in enumerate(gains):
        y, kind = ROW * (place + 0.5), "better" if low > 0 else "worse" if high < 0 else "equal"
        if not isfinite(high - low):  # one group alone
            continue
        x1, x, x2 = (middle + scale * value for value in (low, (low + high) / 2, high))
        lines.append(
            f"<g class='{kind}'><text x='0' y='{y + 5}'>{escape(name)}</text><circle cx='{x:.1f}' cy='{y}' r='4'/>"
            f"<line x1='{x1:.1f}' x2='{x2:.1f}' y1='{y}' y2='{y}' stroke-width='2'/></g>"
        )
    box = f"0 0 {WIDTH} {ROW * len(gains)}"
    return f"<svg viewBox='{box}' role='img' aria-label='{escape(label)}'>{''.join(lines)}</svg>"

"""The report: one self-contained HTML page about a fitted model and a table, and the page of a comparison."""

from __future__ import annotations

import math
import os
from collections import Counter
from typing import Any

import numpy as np
import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from numpy.typing import NDArray

import vmg
from vmg.estimators import TableModel
from vmg.files import replacing
from vmg.report import facts, figures
from vmg.report.facts import Contents, Intervals
from vmg.report.panel import short
from vmg.review.comparison import OWN, SCORES, Comparison
from vmg.review.remarks import column_facts, table_remarks
from vmg.tables import TableError

__all__ = ["render_comparison", "render_report", "write_report"]

MOST_INFLUENCES = 25  # columns in the pictures of influence and relevance
MOST_EFFECTS = 12  # columns whose effect is drawn
MOST_SUMMARISED = 60  # columns in the table of columns
MOST_SHOWN = 5  # columns beside a single row
FEWEST_TO_JUDGE = 20  # below this chance alone decides
FEWEST_TO_DRAW = 5  # below this a distribution has no shape


def write_report(
    model: TableModel, frame: pd.DataFrame, path: str | os.PathLike[str], *, note: str | None = None
) -> None:
    """Write a page about ``model`` and the rows of ``frame`` to ``path``.

    Parameters
    ----------
    model : TableModel
        A fitted model.
    frame : DataFrame
        Rows with the columns the model was fitted on. Without the target, what needs the truth is left out.
    path : path
        An HTML file; an old one is replaced only by a complete new one.
    note : str, optional
        A line under the title, such as the name of the data file and the date. Without it the same model and rows
        give the same file, byte for byte.
    """
    page = render_report(model, frame, note=note)
    try:
        with replacing(path) as temporary:
            temporary.write_text(page, encoding="utf-8")
    except OSError as error:
        raise TableError(f"cannot write {os.fspath(path)}: {error.strerror or error}") from error


def render_report(model: TableModel, frame: pd.DataFrame, *, note: str | None = None) -> str:
    """The page that :func:`write_report` writes."""
    if not len(frame):
        raise TableError("a report needs at least one row; the table has none")
    model.encoder.transform(frame.iloc[:1])  # says which columns are missing, before anything else fails on them
    influences = facts.column_influences(model, frame, MOST_INFLUENCES)
    names = [influence.column for influence in influences]
    effects = facts.column_effects(model, frame, names[:MOST_EFFECTS])
    contents, shown = facts.read_contents(model, frame), names[:MOST_SHOWN]
    shown_classes = contents.shown_classes
    page: dict[str, Any] = {"reliability": [], "by_chance": 0.0, "legend": [], "effect_class": None}
    if model.task == "regression":
        intervals, unit = facts.read_intervals(model, contents), f"typical change of {model.target}"
        page["figures"] = figures.regression_figures(contents, intervals, model.target)
    else:
        intervals, unit = None, "probability that moves to other classes"
        if contents.scores:
            page["reliability"] = facts.read_reliability(contents)
            page["by_chance"] = facts.calibration_error_by_chance(contents.prediction.probabilities.max(1))
        page["figures"] = figures.classification_figures(contents, page["reliability"])
        classes = [str(contents.prediction.classes[k]) for k in shown_classes]
        page |= {"legend": figures.class_legend(classes)} if len(classes) > 1 else {"effect_class": classes[0]}
    if influences:
        page["figures"]["influence"] = figures.influence_figure(influences, short(unit, 60))
    axes = figures.effect_frame(effects, model.task, model.target, shown_classes) if effects else ()
    drawn = [(effect, figures.effect_picture(effect)(effect, *axes)) for effect in effects]

    def rows(which: NDArray[np.int64]) -> list[dict[str, Any]]:
        table = facts.read_columns(model, frame.iloc[contents.position[which]])
        if frame.index.equals(pd.RangeIndex(len(frame))):  # people count from 1
            table = table.set_axis(contents.position[which] + 1)
        return [
            {"label": str(label), "cells": cells.tolist(), **_describe(contents, intervals, int(row))}
            for row, (label, cells) in zip(which, table[shown].iterrows(), strict=True)
        ]

    certain, uncertain = map(rows, contents.extremes)
    columns = column_facts(model.encoder, frame, model.target, model.task)
    columns.sort(key=lambda column: column.name == model.target)
    n_scored = int(contents.scores["rows"]) if contents.scores else 0
    return _render(
        "page.html",
        model=model,
        note=note,
        n_rows=len(frame),
        columns=columns[:MOST_SUMMARISED],
        n_more_columns=max(0, len(columns) - MOST_SUMMARISED),
        kinds=Counter(column.type for column in columns if column.role == "input"),
        n_missing=sum(column.missing for column in columns),
        remarks=table_remarks(model.encoder, frame, model.target),
        has_target=model.target in frame.columns,
        contents=contents,
        intervals=intervals,
        n_scored=n_scored,
        few=0 < n_scored < FEWEST_TO_JUDGE,
        drawable=n_scored >= FEWEST_TO_DRAW,
        shown=shown,
        certain=certain,
        uncertain=uncertain,
        n_influences=len(influences),
        effects=drawn,
        **page,
    )


def _describe(contents: Contents, intervals: Intervals | None, row: int) -> dict[str, Any]:
    """The prediction of a row, its truth where it is known, and the share of ignorance."""
    prediction, truth = contents.prediction, contents.truth[row]
    described: dict[str, Any] = {"ignorance": float(contents.ignorance_share[row])}
    if intervals is not None:
        low, high = intervals.of_row[row]
        described |= {"mean": float(prediction.mean[row]), "low": low, "high": high, "good": low <= truth <= high}
        return described | {"truth": None if math.isnan(truth) else float(truth)}
    probabilities, classes = prediction.probabilities[row], prediction.classes
    order = np.argsort(-probabilities, kind="stable")
    described |= {"ranking": [(str(classes[k]), float(probabilities[k])) for k in order[:2]]}
    return described | {"good": truth == order[0], "truth": None if truth < 0 else str(classes[truth])}


def render_comparison(comparison: Comparison, title: str) -> str:
    """A comparison as a page."""
    names = {key: name for key, (name, _) in SCORES.items()}
    score = names["crps" if comparison.task == "regression" else "brier"]
    about: dict[str, Any] = {"comparison": comparison, "title": title, "names": names, "score": score, "own": OWN}
    return _render("comparison.html", **about, figure=figures.difference_figure(comparison.gains))


def _render(page: str, **contents: Any) -> str:
    """A page from its template."""
    environment = Environment(
        loader=PackageLoader("vmg.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": number, "percent": percent, "probability": probability, "verdict": verdict}
    return environment.get_template(page).render(version=vmg.__version__, **contents)


def _describe_number(intervals: Intervals, contents: Contents, row: int) -> dict[str, Any]:
    (low, high), truth = intervals.of_row[row], float(contents.truth[row])
    return {
        "mean": float(contents.prediction.mean[row]),
        "low": low,
        "high": high,
        "truth": None if math.isnan(truth) else truth,
        "good": low <= truth <= high,
        "ignorance": float(contents.ignorance_share[row]),
    }


def _describe_class(contents: Contents, row: int) -> dict[str, Any]:
    probabilities, classes = contents.prediction.probabilities[row], contents.prediction.classes
    order, label = np.argsort(-probabilities, kind="stable"), int(contents.truth[row])
    return {
        "ranking": [(str(classes[k]), float(probabilities[k])) for k in order[:2]],
        "truth": None if label < 0 else str(classes[label]),
        "good": label == order[0],
        "ignorance": float(contents.ignorance_share[row]),
    }


def number(value: Any) -> str:
    """A cell or a score as people write it: three digits that matter, whole numbers whole, years without a comma."""
    if value is None or (not isinstance(value, str) and pd.isna(value)):
        return "–"
    if isinstance(value, pd.Timestamp):
        return f"{value:%Y-%m-%d}" if value == value.normalize() else f"{value:%Y-%m-%d %H:%M}"
    if isinstance(value, str | bool | np.bool_):
        return str(value)
    value = float(value)
    size = abs(value)
    if math.isinf(value):
        text = "∞" if value > 0 else "−∞"
    elif size >= 1e7 or 0 < size < 1e-3:
        text = f"{value:.2e}"
    elif size >= 100 or value == round(value):
        text = f"{value:.0f}" if size < 9999.5 else f"{value:,.0f}"
    else:
        text = f"{value:#.3g}".rstrip(".")  # 99.97 is 100.
    return text.replace("-", "−", 1) if value < 0 else text


def percent(share: float, digits: int = 0) -> str:
    """0.123 as 12 %, never broken over two lines."""
    return f"{100 * share:.{digits}f}\u00a0%"


def probability(share: float) -> str:
    """A class probability: near 0 and 1 a digit more, never quite 0 or 1."""
    if share > 0.999:
        return "> 99.9\u00a0%"
    if share < 0.001:
        return "< 0.1\u00a0%"
    return percent(share, 1 if share > 0.99 or share < 0.01 else 0)


def verdict(value: float | None, fine: float, fair: float) -> str:
    """How a score looks, higher being better: "fine" from ``fine`` on, "fair" from ``fair`` on, else "poor"."""
    if value is None or math.isnan(value):
        return "unknown"
    return "fine" if value >= fine else "fair" if value >= fair else "poor"

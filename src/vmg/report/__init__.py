"""The report: one self-contained HTML page about a fitted model and a table."""

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
from vmg.report.classification import ClassificationContents, classification_contents, classification_figures
from vmg.report.facts import network_summary, read_columns, summarise_columns, training_curve
from vmg.report.influence import column_effects, column_influences
from vmg.report.panel import class_legend, effect_figures, shared_figures, short
from vmg.report.regression import RegressionContents, regression_contents, regression_figures
from vmg.review.remarks import table_remarks
from vmg.tables import TableError

__all__ = ["render_report", "write_report"]

MOST_INFLUENCES = 25  # columns in the pictures of influence and relevance
MOST_EFFECTS = 12  # columns whose effect is drawn
MOST_SUMMARISED = 60  # columns in the table of columns
MOST_SHOWN = 5  # columns beside a single row
MOST_CLASSES = 6  # classes in one picture of effects
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
    influences = column_influences(model, frame, MOST_INFLUENCES)
    curve = training_curve(model.estimator)
    names = [influence.column for influence in influences]
    effects = column_effects(model, frame, names[:MOST_EFFECTS])

    contents: RegressionContents | ClassificationContents
    if model.task == "regression":
        contents = regression_contents(model, frame)
        figures = regression_figures(contents, model.target)
        shown_classes, unit = [0], f"typical change of {short(model.target)}"
        classes: tuple[str, ...] = ()
        describe = _describe_number
    else:
        contents = classification_contents(model, frame)
        figures = classification_figures(contents)
        classes, unit = contents.classes, "probability that moves to other classes"
        shown_classes = _shown_classes(contents)
        describe = _describe_class
    figures |= shared_figures(influences, curve, unit)
    drawn = effect_figures(effects, model.task, model.target, shown_classes)

    shown = names[:MOST_SHOWN]

    def rows(which: NDArray[np.int64]) -> list[dict[str, Any]]:
        table = read_columns(model, frame.iloc[contents.position[which]])
        return [
            {"label": str(label), "cells": cells.tolist(), **describe(contents, int(row))}
            for row, (label, cells) in zip(which, table[shown].iterrows(), strict=True)
        ]

    columns = summarise_columns(model, frame)
    environment = Environment(
        loader=PackageLoader("vmg.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": number, "percent": percent, "probability": probability, "verdict": verdict}
    return environment.get_template("page.html").render(
        model=model,
        note=note,
        version=vmg.__version__,
        n_rows=len(frame),
        columns=columns[:MOST_SUMMARISED],
        n_more_columns=max(0, len(columns) - MOST_SUMMARISED),
        kinds=Counter(column.kind for column in columns if not column.unused and column.kind != "target"),
        n_missing=sum(column.n_missing for column in columns),
        remarks=table_remarks(model.encoder, frame, model.target),
        has_target=model.target in frame.columns,
        contents=contents,
        scores=contents.scores,
        few=contents.scores is not None and contents.scores.n_rows < FEWEST_TO_JUDGE,
        drawable=contents.scores is not None and contents.scores.n_rows >= FEWEST_TO_DRAW,
        figures=figures,
        shown=shown,
        certain=rows(contents.certain),
        uncertain=rows(contents.uncertain),
        n_influences=len(influences),
        n_columns_used=len(model.encoder.columns),
        effects=list(zip(effects, drawn, strict=True)),
        legend=class_legend([classes[k] for k in shown_classes]) if len(shown_classes) > 1 else [],
        effect_class=classes[shown_classes[0]] if classes and len(shown_classes) == 1 else None,
        curve=curve,
        network=network_summary(model.estimator),
    )


def _shown_classes(contents: ClassificationContents) -> list[int]:
    """The second of two classes, or of many the most frequent."""
    if len(contents.classes) == 2:
        return [1]
    return sorted(np.argsort(-contents.probabilities.mean(0), kind="stable")[:MOST_CLASSES].tolist())


def _describe_number(contents: Any, row: int) -> dict[str, Any]:
    low, high = contents.interval_of[row]
    truth = float(contents.truth[row])
    return {
        "mean": float(contents.mean[row]),
        "low": low,
        "high": high,
        "truth": None if math.isnan(truth) else truth,
        "good": low <= truth <= high,
        "ignorance": float(contents.ignorance_share[row]),
    }


def _describe_class(contents: Any, row: int) -> dict[str, Any]:
    order = np.argsort(-contents.probabilities[row], kind="stable")
    label = int(contents.label[row])
    return {
        "ranking": [(contents.classes[k], float(contents.probabilities[row, k])) for k in order[:2]],
        "truth": None if label < 0 else contents.classes[label],
        "good": label == order[0],
        "ignorance": float(contents.ignorance_share[row]),
    }


def number(value: Any) -> str:
    """A cell or a score as people write it: three digits that matter, thousands apart, whole numbers whole."""
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
        text = f"{value:,.0f}"
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

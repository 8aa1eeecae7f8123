"""Pictures of a fitted model on Matplotlib's axes: ``model.plot`` of table models and table estimators."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap

from vmg.estimators import TableClassifier, TableModel, TableRegressor
from vmg.prediction import ClassPrediction
from vmg.report.facts import column_effects, read_columns, read_contents, read_intervals, read_reliability
from vmg.report.figures import calibration_curve, effect_frame, effect_picture, interval_bars, reliability_diagram
from vmg.report.panel import Colour, short
from vmg.tables import TableError
from vmg.tables.cells import as_frame, require_columns
from vmg.tables.columns import NumberColumn

__all__ = ["Plots"]

GRID = 60  # values of each of two columns


class Plots:
    """Pictures of a model and rows X, each on axes of yours (``ax``) or on new ones, which are given back.

    Rows of a :class:`~vmg.estimators.TableModel` have their target in a column. The truth y of an estimator's rows is
    an argument; without it, intervals are drawn alone.

    Examples
    --------
    >>> import numpy as np, vmg
    >>> X = np.linspace(0, 1, 60)[:, None]
    >>> model = vmg.TableRegressor(max_iter=20, n_members=2).fit(X, np.sin(6 * X[:, 0]))
    >>> model.plot.effect(X, "x0").get_xlabel()
    'x0'
    """

    def __init__(self, model: TableModel | TableRegressor | TableClassifier) -> None:
        if not isinstance(model, TableModel):
            if model.inputs_ is None:
                raise TableError("pictures need training rows, which this fit did not keep")
            names = model.inputs_.encoder.column_names
            target = next(name for name in ("y", "target", "the target") if name not in names)
            regression = isinstance(model, TableRegressor)
            model = TableModel(model, target, "regression" if regression else "classification")
        self._model = model

    def intervals(self, X: Any, y: Any = None, ax: Axes | None = None) -> Axes:
        """90 % intervals of up to 60 rows in the order of their predictions, with the truth where it is known."""
        if self._model.task != "regression":
            raise TableError(f"intervals are of numbers; the task is {self._model.task}")
        contents = read_contents(self._model, self._frame(X, y))
        intervals = read_intervals(self._model, contents)
        return interval_bars.on(_axes(ax), contents, intervals, short(self._model.target))

    def calibration(self, X: Any, y: Any = None, ax: Axes | None = None) -> Axes:
        """How often stated probabilities come true: of values below a number, or of the likeliest class."""
        contents = read_contents(self._model, self._frame(X, y))
        if contents.scores is None:
            raise TableError(f"calibration needs rows whose target '{self._model.target}' is known")
        if isinstance(contents.prediction, ClassPrediction):
            return reliability_diagram.on(_axes(ax), read_reliability(contents))
        return calibration_curve.on(_axes(ax), contents)

    def effect(self, X: Any, column: str, ax: Axes | None = None) -> Axes:
        """The mean prediction as one column takes other values and all others stay as they are, with its ignorance."""
        frame = self._frame(X)
        require_columns(frame, [column])
        effects = column_effects(self._model, frame, [column])
        if not effects:
            raise TableError(f"the column '{column}' must have several values in these rows")
        classes = read_contents(self._model, frame).shown_classes
        axes = effect_frame(effects, self._model.task, self._model.target, classes)
        ax = effect_picture(effects[0]).on(_axes(ax), effects[0], *axes)
        ax.set(**{"ylabel" if ax.get_xlabel() else "xlabel": column})
        return ax

    def ignorance(self, X: Any, columns: tuple[str, str], ax: Axes | None = None) -> Axes:
        """Ignorance over two columns of numbers, all others at a usual value, with the rows as dots.

        It is a standard deviation in the target's units, or for classes mutual information in nats.
        """
        frame = self._frame(X)
        require_columns(frame, list(columns))
        table = read_columns(self._model, frame)
        kinds = {column.name: column for column in self._model.encoder.columns}
        if not all(isinstance(kinds.get(name), NumberColumn) for name in columns):
            raise TableError(f"ignorance is drawn over two columns of numbers; got {columns}")
        usual = {
            name: column.median() if isinstance(kinds[name], NumberColumn) else column.mode().iloc[0]
            for name, column in table.items()
            if column.notna().any()
        }
        ends = [(table[name].min(), table[name].max()) for name in columns]
        first, second = (np.linspace(low - 0.3 * (high - low), high + 0.3 * (high - low), GRID) for low, high in ends)
        grid = pd.DataFrame([usual] * GRID**2).reindex(columns=table.columns)
        grid[columns[0]], grid[columns[1]] = np.tile(first, GRID), np.repeat(second, GRID)
        prediction = self._model.filled_dist(grid)
        if isinstance(prediction, ClassPrediction):
            values, unit = prediction.mutual_information, "mutual information"
        else:
            values, unit = prediction.epistemic_std, f"standard deviation of {short(self._model.target)}"
        ax = _axes(ax)
        shades = LinearSegmentedColormap.from_list("ignorance", [Colour.PAPER, Colour.BLUE])
        mesh = ax.pcolormesh(first, second, values.reshape(GRID, GRID), cmap=shades, vmin=0, shading="gouraud")
        ax.scatter(table[columns[0]], table[columns[1]], s=8, color=Colour.INK, linewidths=0)
        ax.figure.colorbar(mesh, ax=ax, label=f"ignorance ({unit})")
        ax.set(xlabel=columns[0], ylabel=columns[1])
        return ax

    def _frame(self, X: Any, y: Any = None) -> pd.DataFrame:
        """Rows with their target, where it is known."""
        named = hasattr(X, "columns") or hasattr(X, "__arrow_c_stream__")
        frame = as_frame(X) if named else pd.DataFrame(np.asarray(X), columns=self._model.encoder.column_names)
        if y is None:
            return frame
        truth = np.asarray(y)
        return frame.assign(**{self._model.target: truth.astype(float) if truth.dtype == bool else truth})


def _axes(ax: Axes | None) -> Axes:
    return pyplot.figure(layout="constrained").add_subplot() if ax is None else ax

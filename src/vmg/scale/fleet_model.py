"""A fleet: one model for each group of a table's rows, which rows find by the value of one column."""

from __future__ import annotations

import os
from collections import OrderedDict

import numpy as np
import pandas as pd

import vmg
from vmg.estimators import TableModel
from vmg.model_file import ModelFileError
from vmg.scale.fleet_folder import FleetFolder
from vmg.tables import TableError
from vmg.tables.cells import to_texts

__all__ = ["Fleet", "load_fleet"]

LOADED_MODELS = 2_000  # that a process keeps


class Fleet:
    """The models in a fleet's folder, each loaded when its first row comes.

    Make one with :func:`~vmg.scale.fit_fleet`, get it back with :func:`load_fleet`.
    """

    def __init__(self, folder: FleetFolder) -> None:
        self.folder, self.index = folder, folder.read_index()
        self.target, self.task = self.index.target, self.index.task
        self._loaded: OrderedDict[str, TableModel] = OrderedDict()
        if not self.index.files and self.index.others is None:
            raise ModelFileError(f"{folder.path} must hold a model or more; there is none")

    @property
    def groups(self) -> list[str]:
        """Groups that have a model."""
        return list(self.index.files)

    @property
    def column_names(self) -> list[str]:
        """Columns that a table must have: those of the models, and the one that tells groups apart."""
        name = self.index.others or next(iter(self.index.files.values()))
        return [*self._load(name).encoder.column_names, self.index.by]

    def model(self, group: str) -> TableModel:
        """The model of a group, or the one for groups that are not known."""
        name = self.index.files.get(group, self.index.others)
        if name is None:
            reason = self.index.refused.get(group)
            raise TableError(f"there is no model of '{group}'" + (f": {reason}" if reason else ""))
        return self._load(name)

    def _load(self, name: str) -> TableModel:
        if name in self._loaded:
            self._loaded.move_to_end(name)
            return self._loaded[name]
        model = vmg.load(self.folder.model(name))
        if not isinstance(model, TableModel):
            raise ModelFileError(f"{self.folder.model(name)} must hold a table's model; got {type(model).__name__}")
        self._loaded[name] = model
        if len(self._loaded) > LOADED_MODELS:
            self._loaded.popitem(last=False)
        return model

    def predict_frame(self, frame: pd.DataFrame, coverage: float = 0.9) -> pd.DataFrame:
        """Predictions with a row for each row of ``frame``, each by the model of its own group.

        Rows of groups without a model have no prediction (missing cells), unless the fleet was pooled.
        """
        if self.index.by not in frame.columns:
            raise TableError(f"the table has no column '{self.index.by}', which tells groups apart")
        names = [self.index.files.get(key, self.index.others) for key in to_texts(frame[self.index.by])]
        parts, places = [], []
        for name, rows in pd.Series(np.arange(len(frame))).groupby(np.array(names, dtype=object)).indices.items():
            parts.append(self._load(name).predict_frame(frame.iloc[rows], coverage))
            places.append(rows)
        if not parts:
            name = self.index.others or next(iter(self.index.files.values()))
            empty = self._load(name).predict_frame(frame.iloc[:1], coverage)
            return empty.iloc[:0].reindex(range(len(frame))).set_axis(frame.index)
        found = pd.concat(parts, ignore_index=True).set_axis(np.concatenate(places))
        return found.reindex(range(len(frame))).set_axis(frame.index)

    def unknown(self, frame: pd.DataFrame) -> list[str]:
        """Groups of ``frame`` that have no model of their own."""
        found = set(to_texts(frame[self.index.by]).dropna())
        return sorted(found - set(self.index.files))


def load_fleet(path: str | os.PathLike[str]) -> Fleet:
    """The fleet in a folder that :func:`~vmg.scale.fit_fleet` wrote."""
    return Fleet(FleetFolder(path))

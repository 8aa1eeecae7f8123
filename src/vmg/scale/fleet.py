"""A fleet: one model for each group of a table's rows, in a folder of model files with an index."""

from __future__ import annotations

import json
import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

import vmg
from vmg.estimators import TableModel
from vmg.estimators.table_inputs import FLAGS, Outside
from vmg.files import file_stamp, replacing
from vmg.model_file import ModelFileError
from vmg.tables import TableError
from vmg.tables.cells import no_value, require_columns, to_texts

__all__ = ["INDEX", "MODELS", "Fleet", "FleetIndex", "load_fleet"]

INDEX, MODELS = "index.json", "models"
LOADED_MODELS = 2_000  # that a process keeps


@dataclass(frozen=True)
class FleetIndex:
    """Which column tells groups apart, the file of each, its rows, and groups without a model, with the reason."""

    by: str
    target: str
    task: str
    files: Mapping[str, str]
    rows: Mapping[str, int]
    refused: Mapping[str, str] = field(default_factory=dict)
    others: str | None = None
    notes: tuple[str, ...] = ()

    def write(self, folder: Path) -> None:
        """Call the fleet in a folder finished."""
        document = {"holds": "fleet", **{name: getattr(self, name) for name in self.__dataclass_fields__}}
        with replacing(folder / INDEX) as temporary:
            temporary.write_text(json.dumps(document, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> FleetIndex:
        """The index of a finished fleet; names of files may not lead out of the folder."""
        place = folder / INDEX
        if not place.exists():
            raise ModelFileError(
                f"{folder} holds a fleet that is not finished; run its `vmg fit` again, which goes on"
                if (folder / MODELS).is_dir()
                else f"{folder} must hold a fleet, with its {INDEX}; there is none"
            )
        try:
            document = json.loads(place.read_text(encoding="utf-8"))
            if document["holds"] != "fleet":
                raise ValueError(f"it holds {document['holds']!r:.40}")
            fields = {name: document[name] for name in cls.__dataclass_fields__}
            files = [*fields["files"].values(), *([fields["others"]] if fields["others"] else [])]
            if not files or not all(isinstance(name, str) and Path(name).name == name for name in files):
                raise ValueError("files must have one plain name or more")
            texts = [*(fields[name] for name in ("by", "target", "task")), *fields["files"], *fields["refused"]]
            if not all(isinstance(text, str) for text in texts):
                raise ValueError("names must be texts")
            return cls(**{**fields, "notes": tuple(fields["notes"])})
        except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
            raise ModelFileError(f"{place} does not describe a fleet: {error!r:.200}") from error


class Fleet:
    """The models in a fleet's folder, each loaded when its first row comes.

    Make one with :func:`fit_fleet`, get it back with :func:`load_fleet`.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.index = FleetIndex.read(self.path)
        self.target, self.task = self.index.target, self.index.task
        self._loaded: OrderedDict[str, tuple[tuple[int, ...], TableModel]] = OrderedDict()

    @property
    def groups(self) -> list[str]:
        """Groups that have a model."""
        return list(self.index.files)

    @property
    def files(self) -> list[Path]:
        """The index and all model files."""
        names = [*self.index.files.values(), *([self.index.others] if self.index.others else [])]
        return [self.path / INDEX, *(self.path / MODELS / name for name in names)]

    @property
    def any_model(self) -> TableModel:
        """The model of groups that are not known, or else of the first group; all read columns in the same way."""
        return self._load(self.index.others or next(iter(self.index.files.values())))

    @property
    def column_names(self) -> list[str]:
        """Columns that a table must have: those of the models, and the one that tells groups apart."""
        return [*self.any_model.encoder.column_names, self.index.by]

    def model(self, group: str) -> TableModel:
        """The model of a group, or the one for groups that are not known."""
        name = self.index.files.get(group, self.index.others)
        if name is None:
            reason = self.index.refused.get(group)
            raise TableError(f"there is no model of '{group}'" + (f": {reason}" if reason else ""))
        return self._load(name)

    def _load(self, name: str) -> TableModel:
        path = self.path / MODELS / name
        stamp = file_stamp(path)
        if name in self._loaded and self._loaded[name][0] == stamp:
            self._loaded.move_to_end(name)
            return self._loaded[name][1]
        model = vmg.load(path)
        if not isinstance(model, TableModel) or (model.target, model.task) != (self.target, self.task):
            raise ModelFileError(f"{path} must hold a model of this fleet's target '{self.target}'; it does not")
        group = next((key for key, file in self.index.files.items() if file == name), None)
        if group is not None and not any(note.startswith(f"Model of the group '{group}',") for note in model.notes):
            raise ModelFileError(f"{path} must hold the model of the group '{group}'; it holds another group's")
        self._loaded[name] = stamp, model
        if len(self._loaded) > LOADED_MODELS:
            self._loaded.popitem(last=False)
        return model

    def parts(self, frame: pd.DataFrame) -> list[tuple[TableModel, NDArray[np.int64]]]:
        """Models with the positions of their rows in ``frame``; rows of groups without a model are in none."""
        require_columns(frame, [self.index.by])
        names = [self.index.files.get(key, self.index.others) for key in to_texts(frame[self.index.by])]
        groups = pd.Series(np.arange(len(frame))).groupby(np.array(names, dtype=object)).indices
        return [(self._load(name), places) for name, places in groups.items()]

    def rows_of(self, frame: pd.DataFrame, group: str | None = None) -> tuple[str, TableModel, pd.DataFrame]:
        """A group, its model and its rows in ``frame``; the group with most rows and a model, if none is named."""
        require_columns(frame, [self.index.by])
        keys = to_texts(frame[self.index.by])
        if group is None:
            known = keys[keys.isin(self.groups)] if self.index.others is None else keys.dropna()
            if known.empty:
                raise TableError("no row is of a group with a model")
            group = str(known.value_counts().index[0])
        model, rows = self.model(group), frame[(keys == group).to_numpy()]
        if rows.empty:
            raise TableError(f"no row is of the group '{group}'")
        return group, model, rows

    def predict_frame(self, frame: pd.DataFrame, coverage: float = 0.9, *, outside: Outside = "flag") -> pd.DataFrame:
        """Predictions with a row for each row of ``frame``, each by the model of its own group.

        Rows of groups without a model have no prediction (missing cells) and the flag ``unseen`` with the column that
        tells groups apart, unless the fleet was pooled. ``outside`` is that of
        :meth:`vmg.estimators.TableModel.predict_frame`.
        """
        parts = self.parts(frame)
        if parts:
            tables = [model.predict_frame(frame.iloc[places], coverage, outside=outside) for model, places in parts]
            places = np.concatenate([places for _, places in parts])
            predicted = pd.concat(tables, ignore_index=True).set_axis(places)
        else:
            predicted = self.any_model.predict_frame(frame.iloc[:1], coverage).iloc[:0]
        predicted = predicted.reindex(range(len(frame))).set_axis(frame.index)
        return predicted.assign(**{FLAGS: predicted[FLAGS].fillna(f"unseen:{self.index.by}")})

    def evaluate(self, frame: pd.DataFrame, coverage: float = 0.9) -> dict[str, float]:
        """The scores of :meth:`vmg.estimators.TableModel.evaluate`, each row scored by the model of its own group.

        Rows without a target or without a model are left out. Scores of groups are averaged by their rows; ``r2`` is
        of all rows together.
        """
        parts = self._scored_parts(frame)
        scores = _average([(len(rows), model.evaluate(rows, coverage)) for model, rows in parts])
        if "rmse" in scores:
            spread = float(np.std(np.concatenate([model.target_values(rows) for model, rows in parts])))
            scores["r2"] = 1 - (scores["rmse"] / spread) ** 2 if spread > 0 else float("nan")
        return {**scores, "rows": sum(len(rows) for _, rows in parts)}

    def evaluate_base_rate(self, frame: pd.DataFrame) -> dict[str, float]:
        """The scores that knowing the training targets of each group alone gives."""
        return _average([(len(rows), model.evaluate_base_rate(rows)) for model, rows in self._scored_parts(frame)])

    def training_share(self, frame: pd.DataFrame) -> float:
        """The share of the rows with a target that the models were fitted to, as far as their files know."""
        parts = self._scored_parts(frame)
        return _average([(len(rows), {"share": model.training_share(rows)}) for model, rows in parts])["share"]

    def _scored_parts(self, frame: pd.DataFrame) -> list[tuple[TableModel, pd.DataFrame]]:
        """Models with their rows that have a target."""
        require_columns(frame, [self.target])
        rows = frame[~no_value(frame[self.target])]
        parts = [(model, rows.iloc[places]) for model, places in self.parts(rows)]
        if not parts:
            raise TableError(f"no row has both a value in the target '{self.target}' and a group with a model")
        return parts

    def unknown(self, frame: pd.DataFrame) -> list[str]:
        """Groups of ``frame`` that have no model of their own."""
        require_columns(frame, [self.index.by])
        return sorted(set(to_texts(frame[self.index.by]).dropna()) - set(self.index.files))


def load_fleet(path: str | os.PathLike[str]) -> Fleet:
    """The fleet in a folder that :func:`fit_fleet` wrote."""
    return Fleet(path)


def _average(scores: Sequence[tuple[int, Mapping[str, float]]]) -> dict[str, float]:
    """Scores of groups as one of all rows: means weighted by rows, of squares for the root mean squared error."""
    n_rows, names = sum(n for n, _ in scores), scores[0][1]
    means = {name: sum(n * own[name] ** (1 + (name == "rmse")) for n, own in scores) / n_rows for name in names}
    return {name: value**0.5 if name == "rmse" else value for name, value in means.items()}

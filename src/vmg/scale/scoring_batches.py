"""The plain function behind every engine: record batches of rows to record batches of predictions."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Protocol

import pandas as pd
import pyarrow as pa

import vmg
from vmg.estimators import TableModel
from vmg.model_file import ModelFileError
from vmg.scale import load_fleet
from vmg.tables import TableError
from vmg.tables.wording import listing

__all__ = ["PredictsFrames", "load_scorer", "output_schema", "score_batches"]


class PredictsFrames(Protocol):
    """A model that reads tables: of one table, or one for each group of its rows."""

    @property
    def column_names(self) -> list[str]:
        """Columns that a table must have."""

    def predict_frame(self, frame: pd.DataFrame, coverage: float = 0.9) -> pd.DataFrame:
        """Predictions with a row for each row of ``frame``."""


class _OneModel:
    """A :class:`~vmg.estimators.TableModel` as what scores batches."""

    def __init__(self, model: TableModel) -> None:
        self.model = model
        self.column_names = model.encoder.column_names

    def predict_frame(self, frame: pd.DataFrame, coverage: float = 0.9) -> pd.DataFrame:
        return self.model.predict_frame(frame, coverage)


@lru_cache(maxsize=2)
def load_scorer(path: str) -> PredictsFrames:
    """The model in a file, or the fleet in a folder; a process that asks again gets the one that it has."""
    if os.path.isdir(path):
        return load_fleet(path)
    model = vmg.load(path)
    if not isinstance(model, TableModel):
        raise ModelFileError(f"{path} holds a {type(model).__name__} without a table's columns; use vmg.load in Python")
    return _OneModel(model)


def score_batches(
    batches: Iterable[pa.RecordBatch], model: str | PredictsFrames, *, coverage: float = 0.9, keep: Sequence[str] = ()
) -> Iterator[pa.RecordBatch]:
    """Predict each batch of rows.

    Args:
        batches: rows with the columns that the model was fitted on, and any others.
        model: what `vmg fit` wrote, by its path, which is loaded once a process; or a loaded one.
        coverage: probability that an interval holds the truth.
        keep: columns that go along with the predictions, such as keys of rows.
    """
    scorer = load_scorer(model) if isinstance(model, str) else model
    for batch in batches:
        if batch.num_rows:
            yield _score(batch, scorer, coverage, keep)


def output_schema(
    model: str | PredictsFrames, batch: pa.RecordBatch, *, coverage: float = 0.9, keep: Sequence[str] = ()
) -> pa.Schema:
    """The columns and types that :func:`score_batches` gives for batches like this one, which has a row or more."""
    scorer = load_scorer(model) if isinstance(model, str) else model
    return _score(batch.slice(0, 1), scorer, coverage, keep).schema


def _score(batch: pa.RecordBatch, scorer: PredictsFrames, coverage: float, keep: Sequence[str]) -> pa.RecordBatch:
    missing = [name for name in (*scorer.column_names, *keep) if name not in batch.schema.names]
    if missing:
        raise TableError(f"it lacks the column {listing(missing)}; it has {listing(batch.schema.names)}")
    predicted = scorer.predict_frame(batch.select(scorer.column_names).to_pandas(), coverage)
    kept: dict[str, Any] = {name: batch.column(name) for name in keep}
    found = pa.RecordBatch.from_pandas(predicted, preserve_index=False)
    clash = sorted(set(kept) & set(found.schema.names))
    if clash:
        raise TableError(f"columns that are kept must not have the name of a prediction; got {listing(clash)}")
    return pa.RecordBatch.from_arrays([*kept.values(), *found.columns], names=[*kept, *found.schema.names])

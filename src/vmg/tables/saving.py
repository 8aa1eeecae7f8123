"""A table's model as tensors and a document, and back."""

from __future__ import annotations

import math
import os
from typing import Any, get_args

from torch import Tensor

from vmg.estimators import ESTIMATORS
from vmg.model_file import ModelFileError, write
from vmg.tables.choices import TableChoices
from vmg.tables.encoder import TableEncoder
from vmg.tables.missing import ReferenceRows
from vmg.tables.model import Classifier, Regressor, TableModel
from vmg.tables.target import Task

__all__ = ["model_from_state", "write_model"]


def write_model(model: TableModel, path: str | os.PathLike[str]) -> None:
    """Write a model to one file."""
    tensors, estimator = model.estimator.to_document()
    document = {
        "holds": "TableModel",
        "target": model.target,
        "task": model.task,
        "decimal_comma": model.decimal_comma,
        "notes": list(model.notes),
        "unit": model.unit,
        "choices": model.choices.to_document(),
        "held_out": dict(model.held_out),
        "base_rate": list(model.base_rate),
        "encoder": model.encoder.to_document(),
        "estimator": estimator,
    }
    if model.reference is not None:
        rows, document["reference"] = model.reference.to_state()
        tensors = {**tensors, **rows}
    write(path, tensors, document)


def model_from_state(tensors: dict[str, Tensor], document: dict[str, Any]) -> TableModel:
    """The model in the contents of a file; a ModelFileError where they describe none."""
    try:
        encoder = TableEncoder.from_document(document["encoder"])
        reference = None
        if "reference" in document:
            described = document["reference"]
            reference = ReferenceRows.from_state(tensors, described, encoder.feature_scales, encoder.widths)
        estimator = ESTIMATORS[document["estimator"]["holds"]].from_document(tensors, document["estimator"])
        target, task, comma = (document[key] for key in ("target", "task", "decimal_comma"))
        kind = Regressor if task == "regression" else Classifier
        notes, unit, held_out = tuple(document["notes"]), document.get("unit", ""), document.get("held_out", {})
        if task not in get_args(Task) or not isinstance(estimator, kind):
            raise ValueError(f"task must be that of the estimator {type(estimator).__name__}; got {task!r:.40}")
        texts = (target, unit, *notes)
        if not (
            isinstance(comma, bool) and all(isinstance(text, str) for text in texts) and isinstance(held_out, dict)
        ):
            raise ValueError("target, unit and notes must be texts, and decimal_comma true or false")
        base = tuple(document.get("base_rate", ()))
        n_base = (0, 2) if task == "regression" else (0, len(estimator.classes_))
        if len(base) not in n_base or not all(isinstance(part, float) and math.isfinite(part) for part in base):
            raise ValueError("base_rate must be a mean and a deviation, or a share of each class")
        choices = TableChoices.from_document(document["choices"]) if "choices" in document else TableChoices()
        n_features = len(encoder.feature_names)
        if n_features != estimator.n_features_in_:
            raise ValueError(f"columns must give {estimator.n_features_in_} features; got {n_features}")
    except ModelFileError:
        raise
    except Exception as error:  # a document may be wrong in any way
        raise ModelFileError(f"the file does not describe a whole model: {error!r}") from error
    return TableModel(encoder, estimator, target, task, comma, notes, unit, reference, choices, held_out, base)

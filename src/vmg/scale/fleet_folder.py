"""A fleet on disk: one folder of model files and an index that says which group each is of.

Files of a run that was killed stay, and the next run passes over them. The index comes last: a folder without one is
unfinished.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vmg.files import replacing
from vmg.model_file import ModelFileError
from vmg.tables import TableError

__all__ = ["FleetFolder", "FleetIndex"]

INDEX, PLAN, MODELS = "index.json", "plan.json", "models"
OTHERS = "others.vmg"  # of groups that are not known


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

    def to_document(self) -> dict[str, Any]:
        return {"holds": "fleet", **{name: getattr(self, name) for name in self.__dataclass_fields__}}

    @classmethod
    def from_document(cls, document: Any, place: Path) -> FleetIndex:
        """The index that :meth:`to_document` described; file names may not lead out of the folder."""
        try:
            if document["holds"] != "fleet":
                raise ValueError(f"it holds {document['holds']!r:.40}")
            fields = {name: document[name] for name in cls.__dataclass_fields__}
            files = [*fields["files"].values(), *([fields["others"]] if fields["others"] else [])]
            if not all(isinstance(name, str) and Path(name).name == name for name in files):
                raise ValueError("names of files must be plain names")
            texts = [fields[name] for name in ("by", "target", "task")]
            if not all(isinstance(text, str) for text in (*texts, *fields["files"], *fields["refused"])):
                raise ValueError("names must be texts")
            return cls(**{**fields, "notes": tuple(fields["notes"])})
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ModelFileError(f"{place} does not describe a fleet: {error!r}") from error


class FleetFolder:
    """The files of a fleet."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def model(self, name: str) -> Path:
        """The path of a model file."""
        return self.path / MODELS / name

    def claim(self, run: Mapping[str, Any]) -> None:
        """Note whose folder this is; a TableError where it is another run's."""
        plan = self.path / PLAN
        if plan.exists():
            kept = _read_json(plan)
            different = [name for name, value in run.items() if kept.get(name) != value]
            if different:
                raise TableError(
                    f"{self.path} must be of a run with the same {', '.join(different)}; got another. Give another "
                    "folder, or remove it to start anew."
                )
            return
        if self.path.exists() and any(self.path.iterdir()):
            raise TableError(f"{self.path} must be empty, or a fleet's folder")
        (self.path / MODELS).mkdir(parents=True, exist_ok=True)
        _write_json(plan, run)

    def write_index(self, index: FleetIndex) -> None:
        """Call the fleet finished."""
        _write_json(self.path / INDEX, index.to_document())

    def read_index(self) -> FleetIndex:
        """The index of a finished fleet."""
        place = self.path / INDEX
        if not place.exists():
            unfinished = (self.path / PLAN).exists()
            raise ModelFileError(
                f"{self.path} holds a fleet that is not finished; run its `vmg fit` again, which goes on"
                if unfinished
                else f"{self.path} must hold a fleet, with its {INDEX}; there is none"
            )
        return FleetIndex.from_document(_read_json(place), place)


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{path} is damaged: it is not JSON") from error


def _write_json(path: Path, document: Mapping[str, Any]) -> None:
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(document, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")

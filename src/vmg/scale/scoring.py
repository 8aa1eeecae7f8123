"""Scoring a dataset into a folder: one output file for each piece, written whole or not at all.

A killed run is taken up where it was: pieces whose file is there are passed over. A note in the folder says of which
model and dataset the files are, and another run is refused.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from vmg.files import replacing
from vmg.scale.dataset import open_dataset
from vmg.scale.parallel import spread, start_ray
from vmg.scale.parts import Piece, Refused
from vmg.scale.scoring_batches import load_scorer, score_batches
from vmg.tables import TableError

__all__ = ["ScoringReport", "ScoringTask", "score_dataset", "score_piece"]

NOTE = "_vmg.json"


@dataclass(frozen=True)
class ScoringTask:
    """A piece to score, and where its predictions go."""

    piece: Piece
    model: str
    out: str
    coverage: float
    keep: tuple[str, ...]


@dataclass
class ScoringReport:
    """What a run did: rows and files written, files that were there already, and parts that could not be scored."""

    n_rows: int = 0
    written: list[str] = field(default_factory=list)
    found: list[str] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    empty: list[str] = field(default_factory=list)


def score_dataset(
    model: str | os.PathLike[str],
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    coverage: float = 0.9,
    keep: Sequence[str] = (),
    n_jobs: int = -1,
    ray_address: str | None = None,
    tell: Callable[[ScoringReport], None] | None = None,
) -> ScoringReport:
    """Write predictions for every row of a dataset as Parquet files in the folder ``out``.

    Args:
        model: a model file or a fleet's folder.
        source: what :func:`vmg.scale.open_dataset` opens.
        coverage: probability that an interval holds the truth.
        keep: columns that go along with the predictions.
        n_jobs: processes at once; -1 takes all cores.
        ray_address: a Ray cluster to use instead, "local" to start one here; ``out`` must be a folder that all of its
            machines have.
        tell: called after each piece.
    """
    if not 0 < coverage < 1:
        raise TableError(f"coverage must be between 0 and 1; got {coverage}")
    path, folder = os.path.abspath(model), Path(out).absolute()
    scorer = load_scorer(path)
    dataset = open_dataset(source, [*scorer.column_names, *keep])
    report = ScoringReport(refused=list(dataset.refused), empty=list(dataset.empty))
    folder.mkdir(parents=True, exist_ok=True)
    rows = hashlib.sha256(json.dumps([[p.part.name, list(p.groups), p.n_rows] for p in dataset.pieces]).encode())
    run = {"model": _digest(path), "data": dataset.name, "rows": rows.hexdigest(), "coverage": coverage}
    _claim(folder, {**run, "keep": list(keep)})
    tasks = []
    for piece, place in zip(dataset.pieces, _places(dataset.pieces), strict=True):
        target = folder / place
        if target.exists():
            report.found.append(place)
        else:
            tasks.append(ScoringTask(piece, path, str(target), coverage, tuple(keep)))
    for position, outcome in _outcomes(tasks, n_jobs, ray_address):
        task = tasks[position]
        if isinstance(outcome, str):
            report.refused.append(Refused(task.piece.part.name, outcome))
        else:
            report.n_rows += outcome
            report.written.append(os.path.relpath(task.out, folder))
        if tell is not None:
            tell(report)
    report.written.sort()
    report.refused.sort(key=lambda refused: refused.name)
    return report


def score_piece(task: ScoringTask) -> int | str:
    """Score one piece into its file; the number of rows, or why there is no file."""
    import pyarrow as pa
    from pyarrow import parquet

    target = Path(task.out)
    target.parent.mkdir(parents=True, exist_ok=True)
    n_rows, writer = 0, None
    try:
        with replacing(target) as temporary:
            try:
                batches = task.piece.batches([*load_scorer(task.model).column_names, *task.keep])
                for scored in score_batches(batches, task.model, coverage=task.coverage, keep=task.keep):
                    if writer is None:  # numbers hardly ever repeat, so a dictionary of them would be built in vain
                        repeated = [field.name for field in scored.schema if not pa.types.is_floating(field.type)]
                        writer = parquet.ParquetWriter(temporary, scored.schema, use_dictionary=repeated)
                    writer.write_batch(scored)
                    n_rows += scored.num_rows
            finally:
                if writer is not None:
                    writer.close()
    except TableError as error:
        return str(error)
    return n_rows


def _outcomes(tasks: Sequence[ScoringTask], n_jobs: int, ray_address: str | None) -> Iterator[tuple[int, int | str]]:
    if ray_address is None or not tasks:
        yield from spread(score_piece, tasks, n_jobs=n_jobs)
        return
    ray = start_ray(ray_address)
    actors = max(1, min(len(tasks), int(ray.cluster_resources().get("CPU", 1))))
    rows = ray.data.from_items([{"position": k} for k in range(len(tasks))], override_num_blocks=len(tasks))
    scored = rows.map_batches(
        ScoringActor, fn_constructor_args=(list(tasks),), batch_size=1, compute=ray.data.ActorPoolStrategy(size=actors)
    )
    for row in scored.iter_rows():
        yield int(row["position"]), row["reason"] or int(row["n_rows"])


class ScoringActor:
    """One process of Ray Data's ``map_batches``, which loads the model once."""

    def __init__(self, tasks: Sequence[ScoringTask]) -> None:
        import torch

        torch.set_num_threads(1)  # as everywhere else, so that numbers are the same
        self.tasks = tasks

    def __call__(self, batch: dict[str, Iterable[int]]) -> dict[str, list[int] | list[str]]:
        """Score the pieces at some positions."""
        positions = [int(position) for position in batch["position"]]
        found = [score_piece(self.tasks[position]) for position in positions]
        return {
            "position": positions,
            "n_rows": [outcome if isinstance(outcome, int) else 0 for outcome in found],
            "reason": [outcome if isinstance(outcome, str) else "" for outcome in found],
        }


def _places(pieces: Sequence[Piece]) -> list[str]:
    """The output file of each piece: named as its part, numbered where a part has several pieces."""
    counts: dict[str, int] = {}
    for piece in pieces:
        counts[piece.part.name] = counts.get(piece.part.name, 0) + 1
    seen: dict[str, int] = {}
    places = []
    for piece in pieces:
        name = PurePosixPath(piece.part.name)
        number = seen.get(piece.part.name, 0)
        seen[piece.part.name] = number + 1
        stem = f"{name.stem}-{number:05d}" if counts[piece.part.name] > 1 else name.stem
        ending = ".parquet" if name.suffix.lower() in (".parquet", ".pq") else f"{name.suffix}.parquet"
        places.append(str(name.with_name(stem + ending)))
    return places


def _claim(folder: Path, run: dict[str, object]) -> None:
    """Note in the folder whose predictions it holds; a TableError where they are another run's."""
    note = folder / NOTE
    if note.exists():
        try:
            kept = json.loads(note.read_text(encoding="utf-8"))
        except ValueError as error:
            raise TableError(f"{note} is damaged; remove the folder to start anew") from error
        for name, value in run.items():
            if kept.get(name) != value:
                raise TableError(
                    f"{folder} must hold predictions with {name} = {value}; got {kept.get(name)}. Give another folder, "
                    "or remove it to start anew."
                )
        return
    others = [entry for entry in folder.iterdir() if not entry.name.startswith(".")]
    if others:
        raise TableError(f"{folder} must be empty or hold predictions of this run; it has {others[0].name}")
    with replacing(note) as temporary:
        temporary.write_text(json.dumps(run) + "\n", encoding="utf-8")


def _digest(path: str) -> str:
    """Fingerprint of a model file, or of a fleet's index."""
    file = os.path.join(path, "index.json") if os.path.isdir(path) else path
    with open(file, "rb") as opened:
        return hashlib.sha256(opened.read()).hexdigest()

"""Predictions for a dataset: a plain function over record batches, and a resumable run of it into a folder.

Each piece of the dataset becomes one Parquet file, written whole or not at all. A run that was killed goes on where it
was. A file is kept only where model, rows and the file itself are as they were; otherwise it is written again.
"""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa
from pyarrow import parquet

import vmg
from vmg.estimators import TableModel
from vmg.files import Run, RunError, digest_file, replacing
from vmg.scale.dataset import Piece, open_dataset, require_schema, to_frame
from vmg.scale.fleet import INDEX, Fleet, load_fleet, load_table_model
from vmg.scale.parallel import run_parallel
from vmg.tables import TableError
from vmg.tables.cells import listing, row_hashes

__all__ = ["Scorer", "ScoringReport", "ScoringTask", "load_scorer", "score_batches", "score_dataset", "score_piece"]

Scorer = TableModel | Fleet


# -- record batches ---------------------------------------------------------------------------------------------------


def score_batches(
    batches: Iterable[pa.RecordBatch], model: str | Scorer, *, keep: Sequence[str] = (), **how: Any
) -> Iterator[pa.RecordBatch]:
    """Predict each batch of rows.

    Args:
        batches: rows with the columns that the model was fitted on, and any others.
        model: what `vmg fit` wrote, by its path, which is loaded once a process; or a loaded one.
        keep: columns that go along with the predictions, such as keys of rows.
        how: ``coverage``, ``outside``, ``point`` and ``above``, as in :meth:`vmg.estimators.TableModel.predict_frame`.
    """
    scorer = load_scorer(model) if isinstance(model, str) else model
    columns = _columns(scorer)
    for batch in batches:
        if not batch.num_rows:
            continue
        require_schema(batch.schema, [*columns, *keep], batch.schema)
        predicted = scorer.predict_frame(to_frame(batch.select(columns)), **how)
        scored = pa.RecordBatch.from_pandas(predicted, preserve_index=False)
        names = [f"{name}_predicted" if name in keep else name for name in scored.schema.names]
        kept = [batch.column(name) for name in keep]
        yield pa.RecordBatch.from_arrays([*kept, *scored.columns], names=[*keep, *names])


def load_scorer(path: str) -> Scorer:
    """The model in a file, or the fleet in a folder; models are loaded again only where their files have changed."""
    return load_fleet(path) if os.path.isdir(path) else load_table_model(path)


def _columns(scorer: Scorer) -> list[str]:
    """Columns that predictions need."""
    return [*scorer.encoder.column_names, *([scorer.by] if isinstance(scorer, Fleet) else [])]


# -- into a folder ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ScoringTask:
    """A piece to score, where its predictions go, and the digest of rows whose predictions are there, if any."""

    piece: Piece
    model: str
    out: str
    keep: tuple[str, ...] = ()
    how: Mapping[str, Any] = field(default_factory=dict)
    scored_rows: str | None = None

    def batches(self, digest: Any) -> Iterator[pa.RecordBatch]:
        """The rows of the piece, which are added to a digest on the way."""
        for batch in self.piece.batches([*_columns(load_scorer(self.model)), *self.keep]):
            digest.update(row_hashes(to_frame(batch)))
            yield batch


@dataclass
class ScoringReport:
    """Report of a run: rows and files written, files that were there already, and parts that could not be scored."""

    n_rows: int = 0
    written: list[str] = field(default_factory=list)
    found: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)  # reasons by the names of parts
    empty: list[str] = field(default_factory=list)


def score_dataset(
    model: str | os.PathLike[str],
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    keep: Sequence[str] = (),
    n_jobs: int = -1,
    progress: Callable[[int, int], None] | None = None,
    **how: Any,
) -> ScoringReport:
    """Write predictions for every row of a dataset as Parquet files in the folder ``out``.

    Args:
        model: a model file or a fleet's folder.
        source: what :func:`vmg.scale.open_dataset` opens.
        keep, how: as in :func:`score_batches`.
        n_jobs: as in :func:`vmg.scale.run_parallel`.
        progress: called with the numbers of finished and of all files.
    """
    how = {"coverage": 0.9, "outside": "flag", **how}
    if not 0 < how["coverage"] < 1:
        raise TableError(f"coverage must be between 0 and 1; got {how['coverage']}")
    path = os.path.abspath(model)
    dataset = open_dataset(source, [*_columns(load_scorer(path)), *keep])
    report = ScoringReport(refused=dict(dataset.refused), empty=list(dataset.empty))
    settings = {"model": _digest_model(path), "data": dataset.name, "keep": list(keep), **how}
    with Run({**settings, "version": vmg.__version__}).claim(Path(out).absolute()) as folder:
        tasks = {
            place: ScoringTask(piece, path, str(folder.path / place), tuple(keep), how, folder.source_of(place))
            for place, piece in _places(dataset.pieces).items()
        }
        stale = sorted(set(folder.parts) - set(tasks))
        if stale:
            raise RunError(f"{out} has predictions of rows that are no longer in {dataset.name}: {listing(stale)}")
        places, done = list(tasks), run_parallel(score_piece, list(tasks.values()), n_jobs=n_jobs)
        for n_done, (position, outcome) in enumerate(done, 1):
            place = places[position]
            if outcome is None:
                report.found.append(place)
            elif isinstance(outcome, str):
                report.refused[tasks[place].piece.part.name] = outcome
            else:
                folder.add(place, outcome[1])
                report.n_rows += outcome[0]
                report.written.append(place)
            if progress is not None:
                progress(n_done, len(places))
    return replace(report, found=sorted(report.found), written=sorted(report.written))


def score_piece(task: ScoringTask) -> tuple[int, str] | str | None:
    """Score one piece into its file: rows and their digest, the reason why there is none, or None if it was there."""
    target = Path(task.out)
    target.parent.mkdir(parents=True, exist_ok=True)
    n_rows, writer, digest = 0, None, hashlib.sha256()
    try:
        if task.scored_rows is not None:
            deque(task.batches(before := hashlib.sha256()), maxlen=0)
            if before.hexdigest() == task.scored_rows:
                return None
        with replacing(target) as temporary:
            try:
                for scored in score_batches(task.batches(digest), task.model, keep=task.keep, **task.how):
                    if writer is None:  # numbers hardly ever repeat, so a dictionary of them would be built in vain
                        repeated = [field.name for field in scored.schema if not pa.types.is_floating(field.type)]
                        writer = parquet.ParquetWriter(temporary, scored.schema, use_dictionary=repeated)
                    writer.write_batch(scored)
                    n_rows += scored.num_rows
            finally:
                if writer is not None:
                    writer.close()
    except TableError as error:
        target.unlink(missing_ok=True)  # predictions of rows that were there before
        return str(error)
    return n_rows, digest.hexdigest()


def _places(pieces: Sequence[Piece]) -> dict[str, Piece]:
    """Pieces by their output files: named as the part, numbered where a part has several pieces."""
    places: dict[str, Piece] = {}
    for name, of_part in groupby(pieces, key=lambda piece: piece.part.name):
        path, own = PurePosixPath(name), list(of_part)
        stem = path.stem if path.suffix == ".parquet" else path.name  # a.pq beside a.parquet has a file of its own
        for k, piece in enumerate(own):
            place = str(path.with_name(f"{stem}-{k:05d}.parquet" if len(own) > 1 else f"{stem}.parquet"))
            if place in places:
                names = listing([places[place].part.name, name])
                raise TableError(f"the parts {names} would be written to one file; rename one")
            places[place] = piece
    return places


def _digest_model(path: str) -> str:
    """The digest of a model file, or of all files of a fleet."""
    if not os.path.isdir(path):
        return digest_file(path)
    files = [os.path.join(path, name) for name in (INDEX, *load_fleet(path).names.values())]
    return hashlib.sha256("".join(map(digest_file, files)).encode()).hexdigest()

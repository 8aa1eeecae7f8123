"""A dataset that is opened: parts that fit together, and those that do not, with the reason."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pandas as pd
import pyarrow as pa

from vmg.scale.parts import Part, Piece, Refused, list_parts, make_pieces
from vmg.tables import TableError
from vmg.tables.wording import listing

__all__ = ["Dataset", "kind_of_type", "open_dataset"]

Shard = tuple[int, int]
"""Rank and number of processes that share a dataset; (0, 1) is one process alone."""

ALONE: Shard = (0, 1)


@dataclass
class Dataset:
    """Parts whose columns have the same kinds; ``refused`` and ``empty`` name the others.

    A part that turns out to be damaged while its rows are read is named in ``refused`` too. Its rows up to there are
    used, the same ones in every pass.
    """

    name: str
    schema: pa.Schema
    pieces: list[Piece]
    refused: list[Refused] = field(default_factory=list)
    empty: list[str] = field(default_factory=list)

    @property
    def n_rows(self) -> int:
        """Rows of all parts together, as the files state them."""
        return sum(piece.n_rows for piece in self.pieces)

    def frames(
        self, columns: Sequence[str] | None = None, *, shard: Shard = ALONE
    ) -> Iterator[tuple[Piece, pd.DataFrame]]:
        """Tables of a few rows, one after the other, each with the piece that it is from."""
        for piece in self.own_pieces(shard):
            for frame in self.frames_of(piece, columns):
                yield piece, frame

    def own_pieces(self, shard: Shard = ALONE) -> list[Piece]:
        """The pieces that one of several processes reads."""
        rank, world = shard
        return self.pieces[rank::world]

    def frames_of(self, piece: Piece, columns: Sequence[str] | None = None) -> Iterator[pd.DataFrame]:
        """Tables of a few rows of one piece, up to where it is damaged."""
        try:
            for batch in piece.batches(columns):
                yield batch.to_pandas()
        except TableError as error:
            self._refuse(piece.part, f"{error}; rows before that are used")

    def _refuse(self, part: Part, reason: str) -> None:
        if all(refused.name != part.name for refused in self.refused):
            self.refused.append(Refused(part.name, reason))

    def notes(self) -> list[str]:
        """What is worth saying about the parts, in short sentences."""
        sentences = [f"Part {refused}." for refused in self.refused]
        if self.empty:
            sentences.append(f"Parts without rows: {listing(self.empty)}.")
        return sentences


def open_dataset(source: str | os.PathLike[str], columns: Sequence[str] = ()) -> Dataset:
    """Look at every part of ``source``, without reading its rows.

    The first part that can be read says which columns there are and of what kinds. A part that lacks some of
    ``columns`` (or, without them, of the first part's columns), or has another kind in one, is refused.
    """
    name = os.fspath(source)
    schema: pa.Schema | None = None
    good: list[tuple[Part, list[int]]] = []
    refused: list[Refused] = []
    empty: list[str] = []
    for part in list_parts(source):
        try:
            own, sizes = part.layout()
            if schema is None:
                _require(own, columns)
        except TableError as error:
            refused.append(Refused(part.name, str(error)))
            continue
        if schema is None:
            schema = own
        reason = _drift(own, schema, columns or schema.names)
        if reason is not None:
            refused.append(Refused(part.name, reason))
        elif not sum(sizes):
            empty.append(part.name)
        else:
            good.append((part, sizes))
    if schema is None or not good:
        why = "; ".join(map(str, refused[:3])) or f"no part has rows, as {listing(empty)}"
        raise TableError(f"{name} has no part that can be used: {why}")
    return Dataset(name, schema, make_pieces(good), refused, empty)


def _require(schema: pa.Schema, columns: Sequence[str]) -> None:
    missing = [name for name in columns if name not in schema.names]
    if missing:
        raise TableError(f"it lacks the column {listing(missing)}; it has {listing(schema.names)}")


def _drift(schema: pa.Schema, first: pa.Schema, columns: Sequence[str]) -> str | None:
    """How a part's columns differ from the first part's; None where they do not."""
    try:
        _require(schema, columns)
    except TableError as error:
        return str(error)
    for name in columns:
        kinds = [kind_of_type(s.field(name).type) for s in (first, schema) if name in s.names]
        if len(set(kinds) - {"empty"}) > 1:
            return f"its column '{name}' holds {kinds[1]}, and that of the first part {kinds[0]}"
    return None


KINDS: dict[str, Sequence[Callable[[pa.DataType], bool]]] = {
    "empty": [pa.types.is_null],
    "booleans": [pa.types.is_boolean],
    "numbers": [pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal],
    "texts": [pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view],
    "dates": [pa.types.is_timestamp, pa.types.is_date],
}


def kind_of_type(kind: pa.DataType) -> str:
    """What cells of an Arrow type are to a reader: numbers, texts, dates, booleans, or the type's own name."""
    if pa.types.is_dictionary(kind):
        return kind_of_type(kind.value_type)
    return next((name for name, tests in KINDS.items() if any(test(kind) for test in tests)), str(kind))

"""The model file: tensors and one JSON document in a single safetensors file, never pickle.

The document names the format, its version and what the file holds. A SHA-256 digest over the document and every
tensor shows that a file is as it was written; it is no signature, so it does not show by whom. Fingerprints of what a
training run depends on are made the same way, so that a run goes on only from a file of its own.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import stat
from collections.abc import Mapping
from types import UnionType
from typing import Any, Literal, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

import torch
from safetensors.torch import load, save
from torch import Tensor

from vmg.files import replacing

__all__ = [
    "FORMAT_VERSION",
    "MAX_FILE_BYTES",
    "MAX_HEADER_BYTES",
    "Document",
    "ModelFileError",
    "Tensors",
    "fingerprint_tensors",
    "from_bytes",
    "from_fields",
    "read",
    "require_shapes",
    "stripped",
    "to_bytes",
    "write",
]

Tensors: TypeAlias = dict[str, Tensor]
Document: TypeAlias = dict[str, Any]
T = TypeVar("T")

FORMAT = "vmg"
FORMAT_VERSION = 4
"""Raised whenever an older vmg could not read the file rightly."""

DOCUMENT, DIGEST = "vmg", "sha256"  # keys of the safetensors metadata
HEADER_START = b'{"__metadata__"'
FOREIGN = "is not a vmg model: expected a safetensors file with vmg's document"
MAX_FILE_BYTES = 2**30
"""Most bytes of a model that is read; fits of tables have a thousandth of it."""

MAX_HEADER_BYTES = 2**23
"""Most bytes of the names, shapes and the document: its JSON takes some twenty times as much memory."""

PIECE = 4096  # rows that are copied at once, so that a mapped table is never in memory whole
LENGTH_BYTES = 8  # a safetensors file starts with the length of its JSON header, little-endian


class ModelFileError(ValueError):
    """A model file that is missing, damaged, foreign or from a newer version, or that cannot be written."""


def require_shapes(shapes: Mapping[str, tuple[int, ...]], arrays: Mapping[str, Any]) -> None:
    """Raise a ValueError unless each named array or tensor has its shape."""
    for name, shape in shapes.items():
        present = tuple(arrays[name].shape)
        if present != shape:
            raise ValueError(f"{name} must have the shape {shape}, as described; got {present}")


def stripped(start: str, tensors: Mapping[str, Tensor]) -> Tensors:
    """Those tensors whose names have this start, under names without it."""
    return {name.removeprefix(start): tensor for name, tensor in tensors.items() if name.startswith(start)}


def from_fields(cls: type[T], document: Mapping[str, Any]) -> T:
    """A dataclass from its fields in a document; an error where one is unknown, missing or of another type."""
    kinds, values = get_type_hints(cls), dict(document)
    for name, value in values.items():
        origins = [get_origin(kind) for kind in (kinds[name], *get_args(kinds[name]))]  # those of X | None too
        origin = next((one for one in origins if one in (list, tuple)), None)
        if origin is not None and isinstance(value, list | tuple):  # JSON has no tuples
            values[name] = origin(value)
        if not _is(values[name], kinds[name]):
            raise ValueError(f"{name} of {cls.__name__} must be {kinds[name]}; got {value!r:.40}")
    return cls(**values)


def _is(value: Any, kind: Any) -> bool:
    """The same as isinstance, also for what collections hold; True and False are no numbers, and numbers are finite."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return any(_is(value, part) for part in parts)
    if origin is Literal:
        return value in parts
    if origin in (list, tuple):
        return isinstance(value, origin) and all(_is(item, parts[0]) for item in value)
    if origin is Mapping:
        return isinstance(value, dict) and all(_is(k, parts[0]) and _is(v, parts[1]) for k, v in value.items())
    if isinstance(kind, TypeVar):
        return _is(value, kind.__bound__)
    if isinstance(value, bool) or (isinstance(value, float) and not math.isfinite(value)):
        return kind in (bool, Any) and isinstance(value, bool)
    return kind is Any or isinstance(value, (int, float) if kind is float else origin or kind)


def write(path: str | os.PathLike[str], tensors: Mapping[str, Tensor], document: Mapping[str, Any]) -> None:
    """Write ``tensors`` and a JSON-able ``document`` to ``path``; a crash on the way leaves an old file whole.

    ``document["holds"]`` says what kind of model it is.
    """
    try:
        data = to_bytes(tensors, document)
        with replacing(path) as temporary:
            temporary.write_bytes(data)
    except (OSError, ModelFileError) as error:
        raise ModelFileError(f"cannot write {os.fspath(path)}: {getattr(error, 'strerror', None) or error}") from error


def to_bytes(tensors: Mapping[str, Tensor], document: Mapping[str, Any]) -> bytes:
    """The contents of a model file."""
    text = json.dumps({"format": FORMAT, "version": FORMAT_VERSION, **document}, ensure_ascii=False)
    own = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    data = save(own, metadata={DOCUMENT: text, DIGEST: _digest(text, own)})
    header = int.from_bytes(data[:LENGTH_BYTES], "little")
    if header > MAX_HEADER_BYTES:
        raise ModelFileError(f"its header must have at most {MAX_HEADER_BYTES:,} bytes; got {header:,}")
    return data


def read(path: str | os.PathLike[str], *, max_bytes: int = MAX_FILE_BYTES) -> tuple[Tensors, Document]:
    """The tensors and the document of a file that :func:`write` made; no code of the file is run.

    Only a regular file of a size that a model may have is opened.
    """
    name = os.fspath(path)
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            raise ModelFileError(f"cannot read {name}: it is not a regular file")
        if status.st_size > max_bytes:
            raise ModelFileError(f"{name} must have at most {max_bytes:,} bytes; got {status.st_size:,}")
        with open(path, "rb") as file:
            start = file.read(LENGTH_BYTES + len(HEADER_START))
            _header_length(start, name)  # before a large file is read that is no model
            data = start + file.read()
    except ModelFileError:
        raise
    except FileNotFoundError as error:
        raise ModelFileError(f"there is no file {name}") from error
    except (OSError, ValueError) as error:
        raise ModelFileError(f"cannot read {name}: {getattr(error, 'strerror', None) or error}") from error
    return from_bytes(data, name)


def from_bytes(data: bytes, name: str) -> tuple[Tensors, Document]:
    """The tensors and the document in the contents of a model file, whose name errors have."""
    metadata = _metadata(data, name)
    text = metadata[DOCUMENT]
    document = _from_json(text, f"{name} is damaged: its document")
    version = document.get("version") if isinstance(document, dict) else None
    if version is None or document.get("format") != FORMAT or type(version) is not int or version < 1:
        raise ModelFileError(f"{name} is not a vmg model: its document names no format and version")
    if version > FORMAT_VERSION:
        raise ModelFileError(
            f"{name} was written by a newer vmg (file format {version}, this one reads up to {FORMAT_VERSION}); "
            "upgrade with: pip install --upgrade vmg"
        )
    if version < FORMAT_VERSION:
        raise ModelFileError(
            f"{name} was written before vmg 0.1.0 (file format {version}, this one reads {FORMAT_VERSION}); fit the "
            "model again"
        )
    try:
        tensors = load(data)
        digest = _digest(text, tensors)
    except Exception as error:  # the header may be wrong in any way
        raise ModelFileError(f"{name} is truncated or damaged: {error}") from error
    if metadata.get(DIGEST) != digest:
        raise ModelFileError(f"{name} was changed after it was written: its SHA-256 digest does not fit its contents")
    return tensors, document


def _from_json(text: str | bytes, what: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{what} is not JSON ({error})") from error


def _header_length(data: bytes, name: str) -> int:
    """Bytes of the header of a file that starts as models do; a ModelFileError for any other file."""
    if not data:
        raise ModelFileError(f"{name} is empty")
    head = data[LENGTH_BYTES : LENGTH_BYTES + len(HEADER_START)]
    if not head or not HEADER_START.startswith(head):
        raise ModelFileError(f"{name} {FOREIGN}")
    length = int.from_bytes(data[:LENGTH_BYTES], "little")
    if length > MAX_HEADER_BYTES:
        most = f"its header must have at most {MAX_HEADER_BYTES:,} bytes; got {length:,}"
        raise ModelFileError(f"{name} is damaged: {most}")
    return length


def _metadata(data: bytes, name: str) -> dict[str, str]:
    """The metadata in the header of a safetensors file that vmg wrote."""
    length = _header_length(data, name)
    if len(data) < LENGTH_BYTES + length:
        raise ModelFileError(f"{name} is truncated: its header has {length} bytes, the file {len(data)}")
    header = _from_json(data[LENGTH_BYTES : LENGTH_BYTES + length], f"{name} is damaged: its header")
    metadata = header["__metadata__"]
    if not isinstance(metadata, dict) or not isinstance(metadata.get(DOCUMENT), str):
        raise ModelFileError(f"{name} {FOREIGN}")
    return metadata


# -- digests and fingerprints -----------------------------------------------------------------------------------------


def fingerprint_tensors(tensors: Mapping[str, Tensor | None], text: str = "") -> str:
    """SHA-256 over a text and each tensor's name, type, shape and bytes, which are read piece by piece."""
    digest = hashlib.sha256(text.encode())
    for name, tensor in tensors.items():
        if tensor is None:
            digest.update(json.dumps([name, None]).encode())
            continue
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        for piece in tensor.detach().split(PIECE) if tensor.dim() else (tensor.detach(),):
            plain = piece.cpu().clone(memory_format=torch.contiguous_format).flatten()
            digest.update(plain.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _digest(text: str, tensors: Tensors) -> str:
    """The digest of a file: tensors count in the order of their names."""
    return fingerprint_tensors(dict(sorted(tensors.items())), text)

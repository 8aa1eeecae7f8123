"""The model file: tensors and one JSON document in a single safetensors file, never pickle.

The document names the format, its version and what the file holds. A SHA-256 digest over the document and every
tensor shows that a file is as it was written; it is no signature, so it does not show by whom.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from vmg.fingerprint import tensor_bytes
from vmg.outputs import replacing

__all__ = ["FORMAT_VERSION", "ModelFileError", "read", "replacing", "write"]

FORMAT = "vmg"
FORMAT_VERSION = 1
"""Raised whenever an older vmg could not read the file rightly."""

DOCUMENT, DIGEST = "vmg", "sha256"  # keys of the safetensors metadata
HEADER_START = b'{"__metadata__"'
LENGTH_BYTES = 8  # a safetensors file starts with the length of its JSON header, little-endian


class ModelFileError(ValueError):
    """A model file that is missing, damaged, foreign or from a newer version, or that cannot be written."""


def write(path: str | os.PathLike[str], tensors: Mapping[str, Tensor], document: Mapping[str, Any]) -> None:
    """Write ``tensors`` and a JSON-able ``document`` to ``path``; a crash on the way leaves an old file whole.

    ``document["holds"]`` says what kind of model it is.
    """
    whole = {"format": FORMAT, "version": FORMAT_VERSION, **document}
    text = json.dumps(whole, ensure_ascii=False)
    own = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    data = save(own, metadata={DOCUMENT: text, DIGEST: _digest(text, own)})
    try:
        with replacing(path) as temporary:
            temporary.write_bytes(data)
    except OSError as error:
        raise ModelFileError(f"cannot write {os.fspath(path)}: {error.strerror or error}") from error


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the document of a file that :func:`write` made; no code of the file is run."""
    name = os.fspath(path)
    try:
        data = Path(path).read_bytes()
    except FileNotFoundError as error:
        raise ModelFileError(f"there is no file {name}") from error
    except OSError as error:
        raise ModelFileError(f"cannot read {name}: {error.strerror or error}") from error

    metadata = _metadata(data, name)
    text = metadata[DOCUMENT]
    document = _parse(text, name)
    version = document["version"]
    if version > FORMAT_VERSION:
        raise ModelFileError(
            f"{name} was written by a newer vmg (file format {version}, this one reads up to {FORMAT_VERSION}); "
            "upgrade with: pip install --upgrade vmg"
        )
    try:
        tensors = load(data)
    except SafetensorError as error:
        raise ModelFileError(f"{name} is truncated or damaged: {error}") from error
    if metadata.get(DIGEST) != _digest(text, tensors):
        raise ModelFileError(f"{name} was changed after it was written: its SHA-256 digest does not fit its contents")
    return tensors, document


def _digest(text: str, tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over the document and each tensor's name, type, shape and bytes."""
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        for piece in tensor_bytes(tensor):
            digest.update(piece)
    return digest.hexdigest()


def _parse(text: str, name: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except ValueError as error:
        raise ModelFileError(f"{name} is damaged: its document is not JSON ({error})") from error
    known = isinstance(document, dict) and document.get("format") == FORMAT and isinstance(document.get("version"), int)
    if not known:
        raise ModelFileError(f"{name} is not a vmg model: its document names no format and version")
    return document


def _metadata(data: bytes, name: str) -> dict[str, str]:
    """The metadata in the header of a safetensors file that vmg wrote."""
    if not data:
        raise ModelFileError(f"{name} is empty")
    start = data[LENGTH_BYTES : LENGTH_BYTES + len(HEADER_START)]
    if not start or not HEADER_START.startswith(start):
        raise ModelFileError(f"{name} is not a vmg model: expected a safetensors file with vmg's document")
    length = int.from_bytes(data[:LENGTH_BYTES], "little")
    if len(data) < LENGTH_BYTES + length:
        raise ModelFileError(f"{name} is truncated: its header has {length} bytes, the file {len(data)}")
    try:
        metadata = json.loads(data[LENGTH_BYTES : LENGTH_BYTES + length])["__metadata__"]
    except ValueError as error:
        raise ModelFileError(f"{name} is damaged: its header is not JSON ({error})") from error
    if DOCUMENT not in metadata:
        raise ModelFileError(f"{name} is not a vmg model: expected a safetensors file with vmg's document")
    return metadata

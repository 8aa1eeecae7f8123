"""Finding a data file: in the folder `VMG_DATA`, else in the cache, else on the network."""

import hashlib
import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy.typing as npt

from vmg.files import digest_file, replacing

DATA_VARIABLE = "VMG_DATA"


def cache_folder() -> Path:
    """The folder that downloaded and converted files are kept in."""
    return Path(_import_pooch().os_cache("vmg"))


def find_file(path: str) -> Path | None:
    """The copy of `path` (as in `uci/boston/data.csv.gz`) in `VMG_DATA` or the cache, or None."""
    data_folder = os.environ.get(DATA_VARIABLE)
    if data_folder and (file := Path(data_folder) / path).is_file():
        return file
    file = cache_folder() / path
    return file if file.is_file() else None


def fetch_file(path: str, url: str, sha256: str) -> Path:
    """The copy of `path` that is at hand, else downloaded from `url` to the cache; its SHA-256 is checked."""
    if file := find_file(path):
        _check_file(file, sha256, origin=str(file))
        return file
    file = cache_folder() / path
    with write_whole(file) as unfinished:
        download(url, unfinished, wanted=path)
        _check_file(unfinished, sha256, origin=url)
    return file


def download(url: str, target: Path, *, wanted: str) -> None:
    """Write what `url` holds to `target`, or say how to do without, by a copy of the file `wanted`."""
    # Large chunks: pooch flushes after each, and its default of 1 kB is slow on Year's 211 MB.
    fetch = _import_pooch().HTTPDownloader(chunk_size=2**20)
    try:
        fetch(url, str(target), None)
    except OSError as error:  # requests' exceptions are OSErrors
        response = getattr(error, "response", None)
        if response is not None:
            response.close()  # pooch leaves the connection open when the server answers with an error
        raise ConnectionError(
            f"could not download {url}: {error}. To go on without it, set {DATA_VARIABLE} to a folder that "
            f"holds {wanted}, or put that file at {cache_folder() / wanted}; or try again online."
        ) from error


@contextmanager
def write_whole(target: Path) -> Iterator[Path]:
    """A temporary file that becomes `target` if the block succeeds and disappears if it does not."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with replacing(target) as unfinished:
        yield unfinished


def check_content(values: npt.NDArray[Any], sha256: str, *, origin: str) -> None:
    """Raise unless `values` have this SHA-256 as little-endian bytes in C order, whatever file held them."""
    digest = hashlib.sha256(values.astype(values.dtype.newbyteorder("<"), order="C").tobytes()).hexdigest()
    if digest != sha256:
        raise ValueError(
            f"{origin} does not hold the known values: expected an array with SHA-256 {sha256}; "
            f"got shape {values.shape}, SHA-256 {digest}"
        )


def _check_file(file: Path, sha256: str, *, origin: str) -> None:
    digest = digest_file(file)
    if digest != sha256:
        raise ValueError(
            f"{origin} is damaged or another file: expected SHA-256 {sha256}; got {digest} "
            f"({file.stat().st_size} bytes)"
        )


def _import_pooch() -> Any:
    try:
        return importlib.import_module("pooch")
    except ImportError as error:
        raise ImportError(
            f"vmg downloads and caches data with pooch, which is not installed: pip install vmg[app], "
            f"or set {DATA_VARIABLE} to a folder that holds the data"
        ) from error

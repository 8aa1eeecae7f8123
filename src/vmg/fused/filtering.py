"""Assumed density filtering, compiled."""

from __future__ import annotations

import ctypes

import numpy as np
from numpy.typing import NDArray

from vmg.fused import library

__all__ = ["filter_rows", "refine_prior"]

Array = NDArray[np.float64]
Integers = NDArray[np.int64]


def filter_rows(
    sizes: Integers,
    n_rows: Integers,
    x: Array,
    y: Array,
    order: Integers,
    m: Array,
    v: Array,
    noise: Array,
    *,
    known: bool,
) -> Array | None:
    """``vmg_paper.baselines.filtering.filter_rows`` in C++: changes m, v and noise in place; None without it."""
    function = library.function("vmg_filter")
    if function is None:
        return None
    x, y = (np.ascontiguousarray(values, dtype=np.float64) for values in (x, y))
    sizes, n_rows, order = (np.ascontiguousarray(values, dtype=np.int64) for values in (sizes, n_rows, order))
    _check_in_place(m, v, noise)
    log_evidence = np.empty(len(x))
    arrays: tuple[Array | Integers, ...] = (sizes, n_rows, x, y, order, m, v, noise)
    counts = (ctypes.c_int64(count) for count in (len(x), x.shape[1], len(sizes) - 1))
    function(*counts, *(_address(array) for array in arrays), ctypes.c_int64(known), _address(log_evidence))
    return log_evidence


def refine_prior(*arrays: Array) -> bool:
    """``vmg_paper.baselines.filtering.refine_prior`` in C++; whether it was there.

    The arrays are m, v, precision, shift, a and b, each [n, W], concentration and rate, each [n], changed in place.
    """
    function = library.function("vmg_refine")
    if function is None:
        return False
    _check_in_place(*arrays)
    function(*(ctypes.c_int64(size) for size in arrays[0].shape), *(_address(array) for array in arrays))
    return True


def _check_in_place(*arrays: Array) -> None:
    assert all(values.flags.c_contiguous and values.dtype == np.float64 for values in arrays)


def _address(array: Array | Integers) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)

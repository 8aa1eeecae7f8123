"""Assumed density filtering, compiled."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

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
    n, N = x.shape[:2]
    n_weights = int(((sizes[:-1] + 1) * sizes[1:]).sum())
    shapes = {"x": (n, N, sizes[0]), "y": (n, N), "order": (n, N), "n_rows": (n,)}
    for name, values in {"x": x, "y": y, "order": order, "n_rows": n_rows}.items():
        if values.shape != shapes[name]:
            raise ValueError(f"{name} must have shape {shapes[name]}; got {values.shape}")
    if (n_rows > N).any() or (order < 0).any() or (order >= N).any():
        raise ValueError(f"n_rows must be at most {N}, and order hold row numbers below it; got others")
    _require_in_place({"m": m, "v": v}, (n, n_weights))
    _require_in_place({"noise": noise}, (n, 2))
    log_evidence = np.empty(n)
    arrays: tuple[Array | Integers, ...] = (sizes, n_rows, x, y, order, m, v, noise)
    counts = (ctypes.c_int64(count) for count in (n, N, len(sizes) - 1))
    function(*counts, *(_address(array) for array in arrays), ctypes.c_int64(known), _address(log_evidence))
    return log_evidence


def refine_prior(*arrays: Array) -> bool:
    """``vmg_paper.baselines.filtering.refine_prior`` in C++; whether it was there.

    The arrays are m, v, precision, shift, a and b, each [n, W], concentration and rate, each [n], changed in place.
    """
    function = library.function("vmg_refine")
    if function is None:
        return False
    _require_in_place(dict(zip(_REFINED, arrays[:6], strict=True)), arrays[0].shape)
    _require_in_place(dict(zip(_GAMMA, arrays[6:], strict=True)), arrays[0].shape[:1])
    function(*(ctypes.c_int64(size) for size in arrays[0].shape), *(_address(array) for array in arrays))
    return True


_REFINED, _GAMMA = ("m", "v", "precision", "shift", "a", "b"), ("concentration", "rate")


def _require_in_place(arrays: Mapping[str, Array], shape: tuple[int, ...]) -> None:
    """Refuse arrays that the kernels would misread or that they may not write."""
    for name, values in arrays.items():
        if values.shape != shape:
            raise ValueError(f"{name} must have shape {shape}; got {values.shape}")
        if values.dtype != np.float64 or not (values.flags.c_contiguous and values.flags.writeable):
            raise ValueError(f"{name} must be contiguous, writeable and float64; got strides {values.strides}")


def _address(array: Array | Integers) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)

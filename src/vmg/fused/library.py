"""Compiled loops for layers on the CPU, and the one place that decides whether they are used.

``kernels.cpp`` is compiled when the package is installed and a C++ compiler is at hand (``hatch_build.py``): for any
processor and, on x86-64, once more for those with AVX2; which of the two is used is found when it is loaded. Without
it, with ``VMG_NATIVE=0`` in the environment, on other devices and for other dtypes, the mathematics runs in PyTorch.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import struct
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import Tensor

from vmg.math.linalg import is_traced, on_device, randn

__all__ = [
    *("DIVERGENCE", "LAYER", "NOT_FINITE", "NOT_POSITIVE", "available", "kernels", "native", "packed", "require"),
    *("standard_normal"),
]

LIBRARY = "_kernels_base.so"  # loaded through ctypes, so the name need not follow the platform's custom
OFF = ("0", "false", "no", "off")  # values of VMG_NATIVE
V3_LIBRARY = "_kernels_v3.so"  # the same for processors of the level x86-64-v3, such as have AVX2
NOT_FINITE, NOT_POSITIVE, NO_MEMORY, BROKEN = 1, 2, 4, 8  # bits of a status, as in csrc/memory.hpp


class Record:
    """The arguments of a kernel: a structure of ``csrc`` as bytes, with the same fields in the same order.

    ``struct`` packs forty numbers several times faster than a ``ctypes.Structure`` takes them. ``layout`` names the
    fields and their types, as the library does itself.
    """

    def __init__(self, name: str, integers: str, doubles: str, pointers: str) -> None:
        kinds = {"i64": integers.split(), "f64": doubles.split(), "ptr": pointers.split()}
        self.names = [name for names in kinds.values() for name in names]
        self.pack = struct.Struct("={}q{}d{}Q".format(*map(len, kinds.values()))).pack
        fields = "".join(f"{field}:{kind}," for kind, names in kinds.items() for field in names)
        self.layout = f"{name}{{{fields}}}"


LAYER = Record(
    "layer",
    integers="n B I R C P x_stride factored",
    doubles="input_scale damping",
    pointers="x M log_row log_column points log_noise log_point_noise point_noise noise "
    "z u v entry_scale point_scale outputs gain root scale out AU g g_variance factors rows "
    "g_x g_M g_log_row g_log_column g_points g_log_noise g_log_point_noise",
)
DIVERGENCE = Record(
    "divergence",
    integers="n R C P factored",
    doubles="precision concentration rate constant at_bound",
    pointers="M log_row log_column log_noise log_point_noise value precisions row_trace column_trace g "
    "g_M g_log_row g_log_column g_log_noise g_log_point_noise",
)
LAYOUT = LAYER.layout + DIVERGENCE.layout

_ONE, _TWO = [ctypes.c_char_p], [ctypes.c_char_p, ctypes.c_int64]  # a record, and the number of threads
_ARGUMENTS = {"forward": _TWO, "backward": _TWO, "divergence": _ONE, "add_divergence_gradient": _ONE}


def _checked(status: int) -> int:
    """The status of a kernel; what it could not do for want of memory, or for a fault of its own, raises."""
    if status & NO_MEMORY:
        raise MemoryError("the compiled kernels must have memory for the layer's intermediate values; got none")
    if status & BROKEN:
        raise RuntimeError("a compiled kernel failed; set VMG_NATIVE=0 in the environment to do without them")
    return status


@functools.cache
def _library() -> ctypes.CDLL | None:
    path = Path(__file__).with_name(LIBRARY)
    if os.environ.get("VMG_NATIVE", "").strip().lower() in OFF or not path.exists():
        return None
    try:
        library = ctypes.CDLL(str(path))
        faster = path.with_name(V3_LIBRARY)
        if faster.exists() and library.vmg_runs_v3():
            library = ctypes.CDLL(str(faster))
        library.vmg_sources.restype = ctypes.c_char_p
        sources = library.vmg_sources().decode()
    except OSError:  # built for another machine
        return None
    except AttributeError:  # built before libraries named their sources
        sources = ""
    if sources != _digest(path.with_name("csrc")):
        warnings.warn(
            f"{path} was compiled from other sources than {path.parent / 'csrc'}; "
            "vmg computes in PyTorch instead, more slowly, until it is installed again",
            stacklevel=2,
        )
        return None
    library.vmg_normals.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_uint64]
    library.vmg_normals.restype = _checked
    return library


def _digest(sources: Path) -> str:
    """The digest that ``hatch_build.py`` writes into a library compiled from this folder."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(sources.glob("*.?pp")))).hexdigest()


@functools.cache
def kernels(dtype: torch.dtype) -> SimpleNamespace | None:
    """The kernels for one dtype, under their names in kernels.cpp."""
    library, suffix = _library(), {torch.float32: "f32", torch.float64: "f64"}.get(dtype)
    if library is None or suffix is None:
        return None
    functions = SimpleNamespace()
    for name, arguments in _ARGUMENTS.items():
        function = getattr(library, f"vmg_{name}_{suffix}")
        function.argtypes, function.restype = arguments, _checked
        setattr(functions, name, function)
    return functions


@functools.cache
def available() -> bool:
    """Whether the compiled kernels are there and not switched off."""
    return _library() is not None


def native(*tensors: Tensor | None) -> SimpleNamespace | None:
    """The kernels for these tensors; None where one of them is not on the CPU or dtypes differ or have no kernels.

    None too where operations are recorded (:mod:`vmg.math.linalg`): a kernel reads memory, and there is none to read.
    """
    if is_traced(*tensors):
        return None
    given = [tensor for tensor in tensors if tensor is not None]
    if not given or any(tensor.dtype is not given[0].dtype or not tensor.is_cpu for tensor in given):
        return None
    return kernels(given[0].dtype)


def require(
    names: Sequence[str], tensors: Sequence[Tensor | None], shapes: Sequence[Sequence[int]], dtype: torch.dtype
) -> None:
    """Refuse tensors that a kernel would misread: it sees an address, and takes shape, type and order for granted."""
    for name, tensor, shape in zip(names, tensors, shapes, strict=True):
        if tensor is None:
            continue
        if tensor.shape != shape:
            raise ValueError(f"{name} must have shape {tuple(shape)}; got {tuple(tensor.shape)}")
        if tensor.dtype is not dtype or not tensor.is_cpu:
            raise ValueError(f"{name} must be {dtype} on the CPU; got {tensor.dtype} on {tensor.device}")
        if not tensor.is_contiguous():
            raise ValueError(f"{name} must be contiguous; got strides {tensor.stride()} for {tuple(tensor.shape)}")


def packed(tensors: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
    """The same numbers without gaps between them, as kernels see no strides."""
    return tuple([t if t is None or t.is_contiguous() else t.contiguous() for t in tensors])


def standard_normal(*shapes: tuple[int, ...], like: Tensor, generator: torch.Generator | None) -> list[Tensor]:
    """One tensor of standard normal numbers for each shape, determined by the generator's state.

    In single precision on the CPU the kernels draw them, from a seed that is drawn from ``generator``: PyTorch's own
    generator is serial and would take a tenth of a training step. So the numbers for a given seed differ between an
    installation with kernels and one without.
    """
    library = _library()
    if is_traced(like) or library is None or like.dtype is not torch.float32 or not like.is_cpu:
        return [randn(shape, like=like, generator=generator) for shape in shapes]
    generator = None if generator is None else on_device(generator, like.device)
    seed = int(torch.empty((), dtype=torch.int64).random_(generator=generator))
    drawn = [torch.empty(shape, dtype=like.dtype) for shape in shapes]
    for number, tensor in enumerate(drawn):
        # an odd multiple of a large number keeps the streams of one seed and of neighbouring seeds apart
        stream = (seed + number * 0xD1342543DE82EF95) & 0xFFFFFFFFFFFFFFFF
        library.vmg_normals(tensor.data_ptr(), tensor.numel(), stream)
    return drawn

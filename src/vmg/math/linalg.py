"""Numerics that all other files use: precision, random numbers, the Cholesky factor, and when values may be read.

While a program is recorded (``torch.compile``, ``torch.export``, ``torch.jit.trace``), inside a transform of
``torch.func`` and for fake tensors there are no numbers to look at. On a device other than the CPU there are, but the
host would wait for them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

__all__ = [
    "NARROW",
    "PLAIN",
    "NotPositiveDefiniteError",
    "all_finite",
    "at_least_float32",
    "cholesky",
    "cholesky_logdet",
    "is_traced",
    "needs_double",
    "on_device",
    "randn",
    "values_readable",
]

NARROW = (torch.float16, torch.bfloat16)
"""Precisions in which no layer computes."""

PLAIN = (Tensor, nn.Parameter)  # anything else, such as a fake or distributed tensor, has ways of its own


def at_least_float32(x: Tensor) -> Tensor:
    """x in single precision where it has less: factorisations and sums over weights need that much."""
    return x.float() if x.dtype in NARROW else x


def needs_double(n_points: int, n_rows: int, dtype: torch.dtype) -> bool:
    """Whether single precision is too little for a layer of P pseudo-points and R rows: where P >= R.

    Σ₁₁ = ÃUÃᵀ + σ²I then has directions in which σ² alone is left. Single precision rounds ÃUÃᵀ by as much as 6 % of
    σ² = 1e-6, and the gain in these directions meets pseudo-outputs and gradients that are not small: values and
    gradients come out wrong by 2 to 50 %. A larger σ² would be another model, so such layers compute in double.
    """
    return n_points >= n_rows and dtype is torch.float32


def randn(shape: Sequence[int], *, like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Standard normal numbers by PyTorch's own generator, of the dtype and on the device of ``like``."""
    shape = tuple(shape)
    if generator is None:  # PyTorch's compiler knows no generators, and takes no argument of that name
        return torch.randn(shape, dtype=like.dtype, device=like.device)
    return torch.randn(shape, dtype=like.dtype, device=like.device, generator=on_device(generator, like.device))


def on_device(generator: torch.Generator, device: torch.device) -> torch.Generator:
    """A generator that can fill tensors on ``device``: this one, or one seeded from it.

    Raises RuntimeError inside a backward pass. Activation checkpointing runs a layer again there and puts back the
    state of PyTorch's default generator only, so a generator of one's own would give other noise, and gradients of
    another function than the one that was evaluated.
    """
    if torch._C._current_graph_task_id() != -1:
        raise RuntimeError(
            "a checkpointed layer must draw from PyTorch's default generator, whose state checkpointing keeps; got a "
            "generator of its own: call vmg.nn.use_generator(model, None) and torch.manual_seed(seed)"
        )
    if generator.device.type == device.type:
        return generator
    seed = int(torch.empty((), dtype=torch.int64, device=generator.device).random_(generator=generator))
    return torch.Generator(device).manual_seed(seed)


def all_finite(x: Tensor) -> bool:
    """Whether no entry is NaN or infinite, in one pass and without a mask of x's size.

    A finite sum has finite terms. A sum of finite terms may overflow, so only then are they looked at one by one.
    """
    if torch.isfinite(x.sum()):
        return True
    return all(bool(torch.isfinite(part).all()) for part in x.flatten().split(2**20))


def is_traced(*tensors: Tensor | None) -> bool:
    """Whether operations on these tensors are recorded or transformed rather than run."""
    if torch.compiler.is_compiling():
        return True
    if torch.jit.is_tracing() or torch._C._are_functorch_transforms_active():  # type: ignore[attr-defined]
        return True
    return any(tensor is not None and type(tensor) not in PLAIN for tensor in tensors)


def values_readable(*tensors: Tensor) -> bool:
    """Whether a branch may depend on the values of these tensors at no cost but reading them."""
    return all(tensor.is_cpu for tensor in tensors) and not is_traced(*tensors)


class NotPositiveDefiniteError(ValueError):
    """A matrix that must be a covariance is not one, even after jitter."""


def cholesky(matrix: Tensor, *, jitter: float = 1e-8, max_tries: int = 6, name: str = "matrix") -> Tensor:
    """Lower Cholesky factor, with growing jitter on the diagonal where the plain factorisation fails.

    The first try adds nothing. Try k adds ``jitter * 10**(k-1)`` times the mean of the diagonal, to the failing
    members of the batch only, so that healthy members keep their exact factor. Where values may not be looked at
    (:func:`values_readable`) there is one more try, with the jitter of the middle one, and what fails it is NaN.

    Args:
        matrix: symmetric matrices, [..., n, n].
        jitter: first relative jitter; single precision never uses less than its own rounding, 1e-7.
        max_tries: how often the jitter grows tenfold before giving up.
        name: what the matrix is, for the error message.
    """
    factor, info = torch.linalg.cholesky_ex(matrix)
    readable = values_readable(matrix)
    if readable and not info.any():
        return factor
    if readable and not torch.isfinite(matrix).all():
        raise NotPositiveDefiniteError(
            f"{name} has non-finite entries, so it has no Cholesky factor; check the input for NaN or infinite "
            "values and lower the learning rate"
        )
    limits = torch.finfo(matrix.dtype)
    relative = max(jitter, limits.eps)
    level = matrix.detach().diagonal(dim1=-2, dim2=-1).mean(-1).abs().clamp_min(limits.tiny)
    shift = torch.zeros_like(level)
    eye = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    for power in range(max_tries) if readable else [max_tries // 2]:
        shift = torch.where(info > 0, relative * 10.0**power * level, shift)
        factor, info = torch.linalg.cholesky_ex(matrix + shift[..., None, None] * eye)
        if readable and not info.any():
            return factor
    if not readable:
        return torch.where((info > 0)[..., None, None], torch.full_like(factor, torch.nan), factor)
    raise NotPositiveDefiniteError(
        f"{name} is not positive definite, even with {relative * 10.0 ** (max_tries - 1):.0e} of its size added to the "
        "diagonal; raise the damping, use fewer pseudo-points, or compute in float64"
    )


def cholesky_logdet(factor: Tensor) -> Tensor:
    """log |C| of C = L Lᵀ by its Cholesky factor L, [...]."""
    return 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)

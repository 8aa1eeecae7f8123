"""A draw of a diagonal layer, its arguments by name, and those that most tests leave out."""

import torch

from vmg.fused.stack import DiagonalDraw, kernels_serve, sample_stack
from vmg.nn import matrix_gaussian

NAMES = ("x", "M", "log_row_scale", "log_column_scale", "points", "log_noise", "log_point_noise")


def sample_diagonal(*, noise, point_noise=None, damping=1e-6, check_finite=False, **given):
    x, *parameters = (given.get(name) for name in NAMES)
    draw = DiagonalDraw(tuple(parameters), (point_noise, noise), damping, matrix_gaussian.sample_diagonal)
    serve = kernels_serve(x, *parameters)
    return sample_stack(x, [draw], check_finite=check_finite)[0] if serve else draw.in_pytorch(x)


def arguments(sizes, batch_shape=(), bias=True, zero_mean=False, noise="layer", dtype=torch.float64, seed=0):
    """Those that take a gradient, and the noise; ``sizes`` are rows, inputs, outputs and pseudo-points."""
    B, n_in, C, P = sizes
    R = n_in + int(bias)
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*batch_shape, *shape, generator=generator, dtype=dtype)

    given = {
        "x": normal(B, n_in),
        "M": None if zero_mean else normal(R, C),
        "log_row_scale": 0.3 * normal(R),
        "log_column_scale": 0.3 * normal(C),
        "points": normal(P, R + C) if P else None,
        "log_noise": None,
        "log_point_noise": None,
    }
    drawn = {"noise": normal(B, C), "point_noise": None}
    if P and noise != "none":
        drawn["point_noise"] = normal(P, R + C)
        given["log_noise"] = 0.1 * normal(2 if noise == "layer" else R + C) - 1
        given["log_point_noise"] = None if noise == "layer" else 0.1 * normal(P) - 1
    for tensor in given.values():
        if tensor is not None:
            tensor.requires_grad_()
    return given, drawn

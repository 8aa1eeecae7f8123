"""A draw of a diagonal layer with the arguments that most tests leave out."""

from vmg.fused.stack import DiagonalDraw, kernels_serve, sample_stack
from vmg.nn import matrix_gaussian


def sample_diagonal(
    x,
    M,
    log_row_scale,
    log_column_scale,
    points,
    log_noise=None,
    log_point_noise=None,
    point_noise=None,
    *,
    noise,
    damping=1e-6,
    check_finite=False,
):
    parameters = (M, log_row_scale, log_column_scale, points, log_noise, log_point_noise)
    draw = DiagonalDraw(parameters, (point_noise, noise), damping, matrix_gaussian.sample_diagonal)
    serve = kernels_serve(x, *parameters)
    return sample_stack(x, [draw], check_finite=check_finite)[0] if serve else draw.in_pytorch(x)

"""A draw of a diagonal layer with the arguments that most tests leave out."""

from vmg.fused.stack import DiagonalDraw
from vmg.nn import matrix_gaussian
from vmg.nn.fusing import draw_rows


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
    input_scale,
    damping=1e-6,
    check_finite=False,
):
    parameters = (M, log_row_scale, log_column_scale, points, log_noise, log_point_noise)
    draw = DiagonalDraw(parameters, (point_noise, noise), input_scale, damping, matrix_gaussian.sample_diagonal)
    return draw_rows(x, draw, check_finite=check_finite)

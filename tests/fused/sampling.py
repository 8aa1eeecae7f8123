"""A draw of a diagonal layer with the arguments that most tests leave out."""

from vmg.nn.fusing import sample_fused


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
    tensors = (x, M, log_row_scale, log_column_scale, points, log_noise, log_point_noise, point_noise, noise)
    return sample_fused(*tensors, input_scale, damping, check_finite=check_finite)

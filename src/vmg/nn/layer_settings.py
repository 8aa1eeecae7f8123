"""Settings of a converted layer that work without tuning, from its size and the number of data."""

from __future__ import annotations

import math
from typing import Any

from vmg.priors import GammaPrior

__all__ = ["layer_settings"]

MOST_POINTS = 50  # the paper's number for its widest layers [LW16, §4.2]
# Of 0.05, 0.1 and 0.25 the first fitted a surface of 700 rows best by far. On validation rows of 900 digits and 5,000
# images 0.15 was better than 0.05 in five of six pairs, with one seed each (results/own_loop_quality.jsonl)
MAX_NOISE = 0.05
FEWEST, MOST = math.exp(-6), 0.1  # standard deviations of the weights at the start


def layer_settings(n_rows: int, n_data: float | None) -> dict[str, Any]:
    """Options of :class:`~vmg.nn.MatrixGaussianLinear` for a layer with ``n_rows`` inputs, bias included.

    Without pseudo-points the divergence of small data sets switches units off until nothing is left, so there are
    always some: 2.5√R, fewer than R and at most 50. The prior learns its own scale, as trained weights have any.
    Weights start with the standard deviation 1/√N, which is about what N data leave of a unit prior.
    """
    scale = FEWEST if n_data is None else min(max(n_data**-0.5, FEWEST), MOST)
    return {
        "n_pseudo": max(0, min(n_rows - 1, round(2.5 * math.sqrt(n_rows)), MOST_POINTS)),
        "max_noise": MAX_NOISE,
        "initial_scale": scale,
        "prior": GammaPrior(),
    }

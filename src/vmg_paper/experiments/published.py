"""Figures of the paper and of others on the same splits, to print beside ours."""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["BEST", "BEST_ONE_LAYER", "PAPER_BASELINES", "PAPER_TABLE1", "PAPER_TABLE2", "Figure"]

DATASETS = ("boston", "concrete", "energy", "kin8nm", "naval", "power", "protein", "wine", "yacht")


class Figure(NamedTuple):
    """A mean over splits, and its standard error where it is stated."""

    mean: float
    error: float


def _figures(rmse: str, log_likelihood: str) -> dict[str, tuple[Figure, Figure]]:
    """Figures of each of the datasets, from rows such as "2.70±0.13 4.89±0.12" or "2.90 MC dropout, 4.82 CARD"."""
    found = (re.findall(r"(-?\d+\.\d+)(?:±(\d+\.\d+))?", row) for row in (rmse, log_likelihood))
    rows = ([Figure(float(mean), float(error or "nan")) for mean, error in row] for row in found)
    return dict(zip(DATASETS, zip(*rows, strict=True), strict=True))


PAPER_TABLE1 = _figures(
    "2.70±0.13 4.89±0.12 0.54±0.02 0.08±0.00 0.00±0.00 4.04±0.04 4.13±0.02 0.63±0.01 0.71±0.05",
    "-2.46±0.09 -3.01±0.03 -1.06±0.03 1.10±0.01 2.46±0.00 -2.82±0.01 -2.84±0.00 -0.95±0.01 -1.30±0.02",
)
"""Test RMSE and log-likelihood of VMG [LW16, Table 1]; Year, one split without errors, is left out."""

PAPER_BASELINES = {
    "graves-vi": _figures(
        "4.32±0.29 7.19±0.12 2.65±0.08 0.10±0.00 0.01±0.00 4.33±0.04 4.84±0.03 0.65±0.01 6.89±0.67",
        "-2.90±0.07 -3.39±0.02 -2.39±0.03 0.90±0.01 3.73±0.12 -2.89±0.01 -2.99±0.01 -0.98±0.01 -3.43±0.16",
    ),
    "pbp": _figures(
        "3.01±0.18 5.67±0.09 1.80±0.05 0.10±0.00 0.01±0.00 4.12±0.03 4.73±0.01 0.64±0.01 1.02±0.05",
        "-2.57±0.09 -3.16±0.02 -2.04±0.02 0.90±0.01 3.73±0.01 -2.84±0.01 -2.97±0.00 -0.97±0.01 -1.63±0.02",
    ),
    "mc-dropout": _figures(
        "2.97±0.85 5.23±0.53 1.66±0.19 0.10±0.00 0.01±0.00 4.02±0.18 4.36±0.04 0.62±0.04 1.11±0.38",
        "-2.46±0.25 -3.04±0.09 -1.99±0.09 0.95±0.03 3.80±0.05 -2.80±0.05 -2.89±0.01 -0.93±0.06 -1.55±0.12",
    ),
}
"""The same of the methods that the paper compares with, by their names here [LW16, Table 1, who quote the sources]."""

BEST_ONE_LAYER = _figures(
    "2.90 MC dropout, 4.82 MC dropout, 0.54 MC dropout, 0.08 MC dropout, 0.00 deep ensemble, 4.01 MC dropout, "
    "4.27 MC dropout, 0.62 MC dropout, 0.67 MC dropout",
    "-2.40 MC dropout, -2.93 MC dropout, -1.01 DVI, 1.20 deep ensemble, 6.29 DVI, -2.79 deep ensemble, "
    "-2.83 deep ensemble, -0.90 DVI, -0.47 DVI",
)
"""The best means on the standard splits that others report, and whose they are: among networks of one hidden layer, as
read in the sources, deep ensembles (arXiv 1612.01474), MC dropout trained to convergence (the readme of
DropoutUncertaintyExps), SLANG (its repository), deterministic variational inference (arXiv 1810.03958)."""

BEST = _figures(
    "2.62 CARD, 4.82 MC dropout, 0.54 MC dropout, 0.064 CARD, 0.00 deep ensemble, 3.91 CARD, 3.71 CARD, "
    "0.62 MC dropout, 0.56 CARD",
    "-2.32 CARD, -2.93 MC dropout, -0.70 DWP-5, 1.40 DWP-5, 8.20 DWP-5, -2.77 DWP-5, -2.47 CARD, -0.87 CARD, "
    "-0.46 DWP-5",
)
"""Among models of any size: also CARD, a diffusion model, and deep Gaussian and deep Wishart processes of five layers,
from the tables of their papers."""

PAPER_TABLE2: dict[tuple[str, str], float] = {
    ("max-likelihood", "2x800"): 1.60,
    ("dropout", ""): 1.25,
    ("dropconnect", "2x800"): 1.20,
    ("bayes-by-backprop", "2x400"): 1.36,
    ("bayes-by-backprop", "2x800"): 1.34,
    ("bayes-by-backprop", "2x1200"): 1.32,
    ("variational-dropout", "3x150"): 1.42,
    ("variational-dropout", "3x250"): 1.28,
    ("variational-dropout", "3x500"): 1.18,
    ("variational-dropout", "3x750"): 1.09,
    ("vmg", "2x400"): 1.15,
    ("vmg", "3x150"): 1.18,
    ("vmg", "3x250"): 1.11,
    ("vmg", "3x500"): 1.08,
    ("vmg", "3x750"): 1.05,
}
"""Test error on MNIST in percent by method and size [LW16, Table 2]; the size of dropout's network is not given there.
Those of other methods are quoted there from their sources, variational dropout's as approximate."""

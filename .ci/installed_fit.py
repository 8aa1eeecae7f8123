"""Fit with an installed package, away from its sources: the compiled kernels must be there and train a network.

Run by ``make wheel-check`` and by cibuildwheel in an environment that holds nothing but the wheel and what it needs.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch

import vmg
from vmg.fused import library
from vmg.likelihoods import GaussianLikelihood
from vmg.nn import MLP
from vmg.training import train


def main() -> None:
    """Fit a table by an estimator and a network by the training loop; say where the package is."""
    package = Path(vmg.__file__).resolve().parent
    if Path(sys.prefix).resolve() not in package.parents:
        raise SystemExit(f"vmg must be the installed package, in {sys.prefix}; got {package}")
    if not library.available():
        raise SystemExit(f"the wheel must hold compiled kernels that load; got {sorted(package.glob('fused/*.so'))}")

    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, size=(80, 2))
    y = np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=80)
    interval = vmg.TableRegressor(random_state=0, max_iter=200).fit(X, y).predict_interval(X, coverage=0.9)
    inside = ((interval[:, 0] <= y) & (y <= interval[:, 1])).mean()

    network, likelihood = MLP(2, (20,), 1, n_pseudo=2), GaussianLikelihood()
    rows = torch.as_tensor(X, dtype=torch.float32), torch.as_tensor(y[:, None], dtype=torch.float32)
    history = train(network, likelihood, *rows, n_steps=300, learning_rate=0.01, report_every=100)
    if not (inside > 0.7 and history.records[-1].elbo > history.records[0].elbo):
        raise SystemExit(f"the fit must cover its rows and the bound rise; got {inside:.2f} and {history.records}")
    print(f"vmg {vmg.__version__} in {package}: kernels load, 90 % intervals hold {inside:.0%} of the rows")


if __name__ == "__main__":
    main()

"""Cross-validation in one pass: K folds as one batched network, against K separate fits.

python benchmarks/splits.py --folds 10
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch
from sklearn.base import clone
from sklearn.datasets import load_diabetes
from sklearn.model_selection import KFold

from vmg import VMGRegressor
from vmg.estimators import fit_splits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folds", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=100)
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    X, y = load_diabetes(return_X_y=True)
    folds = list(KFold(arguments.folds, shuffle=True, random_state=0).split(X))
    estimator = VMGRegressor(max_noise=0.25, max_iter=arguments.epochs, random_state=0)

    started = time.perf_counter()
    together = fit_splits(estimator, X, y, folds)
    one_pass = time.perf_counter() - started
    started = time.perf_counter()
    apart = [clone(estimator).fit(X[train], y[train]) for train, _ in folds]
    separate = time.perf_counter() - started

    for name, models, seconds in (("one pass", together, one_pass), ("separate", apart, separate)):
        score = np.mean([m.score(X[test], y[test]) for m, (_, test) in zip(models, folds, strict=True)])
        print(f"{name}: {seconds:6.1f} s, mean R2 {score:.3f}")
    print(f"one pass is {separate / one_pass:.1f} times faster")


if __name__ == "__main__":
    main()

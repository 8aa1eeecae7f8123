"""Coverage where test rows are not like training rows: small designs whose truth is known, an exact GP beside.

Each design gives training rows and rows elsewhere: in a gap, outside the range, in corners, where a copy of a column is
broken, where noise is larger, with a rare flag, in groups, pairs of categories or times that no training row has; and
like the training rows, but few or with heavy tails. Printed are shares of targets inside their 90 % intervals, the mean
of all seeds, and the median width in standard deviations of the training targets. No method can know everything here;
one that covers far less than the GP is confidently wrong.

    python benchmarks/designs.py --seeds 5
    python benchmarks/designs.py --designs "gap, sin 4x" --seeds 2
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable

import numpy as np
from gaussian_process import GaussianProcess
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from vmg import TableRegressor
from vmg.fit.design import Standardiser
from vmg.metrics import interval_coverage

Array = NDArray[np.float64]
Design = Callable[[np.random.Generator], tuple[Array, Array, Array, Array]]
"""Training inputs and targets, then those elsewhere."""

NOISE = 0.1


def noisy(rng: np.random.Generator, f: Callable[[Array], Array], *rows: Array) -> tuple[Array, Array, Array, Array]:
    """Rows of training and elsewhere with targets f(x) + noise."""
    x, z = rows
    return x, f(x) + NOISE * rng.normal(size=len(x)), z, f(z) + NOISE * rng.normal(size=len(z))


def gap(frequency: float) -> Design:
    """The toy of docs/ignorance.md: rows on both sides of a gap."""

    def design(rng: np.random.Generator) -> tuple[Array, Array, Array, Array]:
        x = (rng.uniform(1, 2, size=(100, 1))) * rng.choice([-1, 1], size=(100, 1))
        z = rng.uniform(-0.5, 0.5, size=(200, 1))
        return noisy(rng, lambda x: np.sin(frequency * x[:, 0]) + 0.5 * x[:, 0], x, z)

    return design


def line(n_inputs: int, factor: float) -> Design:
    """A straight line, and inputs of other rows multiplied by a factor."""

    def design(rng: np.random.Generator) -> tuple[Array, Array, Array, Array]:
        slope, x = rng.normal(size=n_inputs), rng.normal(size=(100, n_inputs))
        z = rng.normal(size=(400, n_inputs)) * factor
        z = z[(np.abs(z) > np.abs(x).max(0)).any(1)]
        return noisy(rng, lambda x: x @ slope, x, z)

    return design


def smooth(x: Array) -> Array:
    """A function of the first three columns."""
    return np.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2] + 0.5 * x[:, 1]


def shifted(rng: np.random.Generator) -> tuple[Array, Array, Array, Array]:
    """The mean of all inputs moved by two standard deviations."""
    return noisy(rng, smooth, rng.normal(size=(200, 5)), rng.normal(size=(200, 5)) + 2)


def corners(rng: np.random.Generator) -> tuple[Array, Array, Array, Array]:
    """Corners of a cube in ten dimensions."""
    return noisy(rng, smooth, rng.uniform(-1, 1, size=(300, 10)), rng.choice([-1.0, 1.0], size=(200, 10)))


def broken_copy(rng: np.random.Generator) -> tuple[Array, Array, Array, Array]:
    """Two columns that are nearly the same in training, and independent elsewhere."""
    one, other = rng.normal(size=(200, 3)), rng.normal(size=(200, 3))
    one[:, 1] = one[:, 0] + 0.01 * rng.normal(size=200)
    return noisy(rng, lambda x: 2 * x[:, 1] + np.sin(x[:, 2]), one, other)


def noisy_band(rng: np.random.Generator) -> tuple[Array, Array, Array, Array]:
    """Noise ten times as large in a narrow band."""
    x, z = rng.uniform(-2, 2, size=(300, 1)), rng.uniform(-0.1, 0.1, size=(200, 1))
    x, y, z, target = noisy(rng, lambda x: np.sin(2 * x[:, 0]), x, z)
    y += np.where(np.abs(x[:, 0]) < 0.1, 10 * NOISE, 0.0) * rng.normal(size=300)
    return x, y, z, target + 10 * NOISE * rng.normal(size=200)


def rare_flag(rng: np.random.Generator) -> tuple[Array, Array, Array, Array]:
    """A flag that two of 200 rows have, and that shifts targets by one."""
    x, z = rng.normal(size=(200, 3)), rng.normal(size=(200, 3))
    x[:, 2], z[:, 2] = np.arange(200) < 2, 1.0
    return noisy(rng, lambda x: np.sin(x[:, 0]) + x[:, 1] + x[:, 2], x, z)


def new_pair(rng: np.random.Generator) -> tuple[Array, Array, Array, Array]:
    """Two columns of four categories each whose effects interact, and a pair of them that no training row has."""
    effects, levels = rng.normal(size=(4, 4)), rng.integers(4, size=(300, 2))
    levels = np.concatenate([levels[~(levels == 0).all(1)], np.zeros((100, 2), dtype=np.int64)])
    x = np.column_stack([np.eye(4)[levels[:, 0]], np.eye(4)[levels[:, 1]], rng.normal(size=len(levels))])
    targets = effects[levels[:, 0], levels[:, 1]] + np.sin(x[:, -1]) + NOISE * rng.normal(size=len(x))
    return x[:-100], targets[:-100], x[-100:], targets[-100:]


def new_groups(rng: np.random.Generator) -> tuple[Array, Array, Array, Array]:
    """Twenty rows of each of fifteen groups, which a column tells apart, with an effect each, and rows of others."""
    group = np.repeat(np.arange(30), 20)
    x = np.column_stack([rng.normal(size=(30, 1))[group], rng.normal(size=(600, 2))])
    targets = rng.normal(size=30)[group] + np.sin(x[:, 1]) + NOISE * rng.normal(size=600)
    return x[:300], targets[:300], x[300:], targets[300:]


def heavy_tails(rng: np.random.Generator) -> tuple[Array, Array, Array, Array]:
    """Noise with the tails of a Student t of two degrees."""
    x, z = rng.normal(size=(200, 3)), rng.normal(size=(200, 3))
    y, target = (np.sin(2 * one[:, 0]) + one[:, 1] + 3 * NOISE * rng.standard_t(2, size=200) for one in (x, z))
    return x, y, z, target


def season(rng: np.random.Generator) -> tuple[Array, Array, Array, Array]:
    """A trend and a season of twelve months; the last quarter of the years."""
    month = np.arange(240)
    angle = 2 * np.pi * month / 12
    x = np.column_stack([month / 240, np.sin(angle), np.cos(angle)])
    return noisy(rng, lambda x: 2 * x[:, 0] + x[:, 1] * (1 + 0.5 * x[:, 2]), x[:180], x[180:])


def random_walk(rng: np.random.Generator) -> tuple[Array, Array, Array, Array]:
    """The last fifth of a random walk."""
    time, y = np.arange(250)[:, None] / 250, np.cumsum(rng.normal(size=250)) / np.sqrt(250)
    return time[:200], y[:200], time[200:], y[200:]


def few(n_rows: int, n_inputs: int) -> Design:
    """Few rows of many columns, the first of which decides."""

    def design(rng: np.random.Generator) -> tuple[Array, Array, Array, Array]:
        x, z = rng.normal(size=(n_rows, n_inputs)), rng.normal(size=(200, n_inputs))
        return noisy(rng, lambda x: np.sin(x[:, 0]) + 0.5 * x[:, 1], x, z)

    return design


DESIGNS: dict[str, Design] = {
    **{f"gap, sin {frequency:g}x": gap(frequency) for frequency in (2.5, 3.0, 3.5, 4.0, 5.0)},
    "line, inputs × 10": line(1, 10.0),
    "line in 5-d, inputs × 10": line(5, 10.0),
    "inputs shifted by 2 sd": shifted,
    "corners of a cube": corners,
    "copy of a column broken": broken_copy,
    "noise in a narrow band": noisy_band,
    "rare flag": rare_flag,
    "pair of categories unseen": new_pair,
    "groups unseen": new_groups,
    "heavy tails": heavy_tails,
    "trend and season, later": season,
    "random walk, later": random_walk,
    **{f"{rows} rows of {columns} columns": few(rows, columns) for rows, columns in ((10, 5), (20, 30), (30, 100))},
}


def process_interval(x: Array, y: Array, z: Array) -> Array:
    """90 % intervals of a GP at rows z."""
    inputs, outputs = Standardiser.fit(x), Standardiser.fit(y[:, None])
    process = GaussianProcess().fit(inputs.transform(x), outputs.transform(y[:, None])[:, 0])
    mean, std = process.predict(inputs.transform(z))
    half = 1.645 * np.hypot(std, process.noise_std)
    return outputs.inverse(np.stack([mean - half, mean + half], -1))


def measure(design: Design, seed: int) -> dict[str, tuple[float, float]]:
    """Coverage and relative width of 90 % intervals of the default and of a GP."""
    x, y, z, target = design(np.random.default_rng(seed))
    intervals = {"table": TableRegressor(random_state=seed).fit(x, y).predict_interval(z, 0.9)}
    intervals["GP"] = process_interval(x, y, z)
    return {
        name: (
            interval_coverage(target, ends),
            float(np.median(ends[:, 1] - ends[:, 0]) / y.std()),
        )
        for name, ends in intervals.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--designs", nargs="*", default=list(DESIGNS), choices=list(DESIGNS), metavar="NAME")
    options = parser.parse_args()
    print("| design | table: coverage | width | GP: coverage | width |\n| --- | --- | --- | --- | --- |")
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in options.designs:
            found = [measure(DESIGNS[name], seed) for seed in range(options.seeds)]
            means = [np.mean([one[method] for one in found], axis=0) for method in ("table", "GP")]
            print(f"| {name} | " + " | ".join(f"{value:.2f}" for mean in means for value in mean) + " |", flush=True)


if __name__ == "__main__":
    main()

"""Predictions of several kinds of experts on training parts of development tables, kept for studies of stacking.

    VMG_DATA=../shared/data python lab/expert_bank.py --out /tmp/bank

Every expert predicts two sets of rows: the rows of its fit that it has not seen (the same folds and regions for all
experts), and rows of the same training part that no expert has seen. ``expert_stacks.py`` weighs the experts by the
first and scores the mixtures on the second. No test row of any table is read.
"""

from __future__ import annotations

import argparse
import itertools
import math
import time
import warnings
from pathlib import Path

import benchmarks_path  # noqa: F401
import numpy as np
import torch
from hard_tables import REGRESSION
from numpy.typing import NDArray
from regression_tables import ALL, load, splits
from scipy import linalg, optimize, special
from sklearn.ensemble import ExtraTreesRegressor, HistGradientBoostingRegressor

from vmg import TableRegressor
from vmg.fit.design import Design, InputRange, Standardiser, choose_size, squash
from vmg.fit.gaussian import RegressionMembers
from vmg.fit.trainer import GroupRows, train_members
from vmg.nn.anchored import AnchoredFeatures, AnchoredFunctions

Array = NDArray[np.float64]
FIT_ROWS, SCORED_ROWS = 500, 1000
KEPT_BACK = {"Caschool", "Housing", "Computers", "Crime", "Clothing", "MCAS", "Cigar", "dietox", "spruce", "quakes"}
"""Tables of benchmarks/kept_back_tables.py, which must choose nothing."""


# -- tables -----------------------------------------------------------------------------------------------------------


def friedman(n: int, n_columns: int, seed: int) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    x = rng.random((n, n_columns))
    f = 10 * np.sin(np.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]
    return x, f + rng.standard_normal(n)


def tables(rows: int = FIT_ROWS) -> dict[str, object]:
    """Makers of (inputs to fit, targets, inputs to score, targets) by name."""
    found: dict[str, object] = {}

    def arrays(name: str) -> tuple[Array, ...]:
        X, y = load(name)
        train = splits(name, 1)[0][0]
        return divide(X[train], y[train])

    def divide(X: Array, y: Array, n_fit: int = rows) -> tuple[Array, ...]:
        order = np.random.default_rng(5).permutation(len(y))
        n_fit = min(n_fit, round(0.7 * len(y)))
        fit, scored = order[:n_fit], order[n_fit : n_fit + SCORED_ROWS]
        return X[fit], y[fit], X[scored], y[scored]

    def raw(table: object) -> tuple[Array, ...]:
        train, _ = table.parts()
        order = np.random.default_rng(5).permutation(len(train))
        n_fit = min(rows, round(0.7 * len(train)))
        fit, scored = (train.iloc[part].reset_index(drop=True) for part in (order[:n_fit], order[n_fit:]))
        y, y_scored = (part[table.target].to_numpy(float) for part in (fit, scored))
        # words become numbers as in the default; one step of training, for the encoder alone is wanted
        model = TableRegressor(likelihood="student", max_iter=1, n_members=2, random_state=0)
        model.fit(fit.drop(columns=table.target), y)
        x, x_scored = (
            part.to_numpy(float) if model.inputs_.plain else model.inputs_.read(part).features
            for part in (fit.drop(columns=table.target), scored.drop(columns=table.target))
        )
        return x, y, x_scored, y_scored

    for name in ALL:
        found[name] = lambda name=name: arrays(name)
    found["friedman-5"] = lambda: divide(*friedman(1200, 10, 1), 200)
    found["friedman-30"] = lambda: divide(*friedman(1500, 35, 2), 500)
    for table in REGRESSION:
        if table.name not in KEPT_BACK:
            found[table.key] = lambda table=table: raw(table)
    return found


# -- experts ----------------------------------------------------------------------------------------------------------


class FastScales(AnchoredFeatures):
    """Log scales of inputs that move ``speed`` times as fast, under a prior that is ``spread`` wide."""

    speed, spread = 5.0, 3.0

    def layers(self):
        scaled = []
        for position, (weight, log_scale) in enumerate(zip(self.weights, self.log_scales, strict=True)):
            fan_in = 1 if position == 0 else weight.shape[-2]
            if position == 0:
                centre = self._first_log_scale()
                log_scale = centre + self.speed * (log_scale - centre)
            scaled.append(weight * (log_scale.exp() / math.sqrt(fan_in)))
        return scaled

    def log_prior(self):
        total = 0.0
        for position, (weight, anchor, log_scale) in enumerate(
            zip(self.weights, self.anchors, self.log_scales, strict=True)
        ):
            centre = self._first_log_scale() if position == 0 else 0.0
            factor = self.speed / self.spread if position == 0 else 1.0
            total = total - 0.5 * (weight - anchor).square().sum((-2, -1))
            total = total - 0.5 * ((log_scale - centre) * factor).square().sum((-2, -1))
        return total


def networks(x, y, x_new, design, size, seed, *, fast=0.0, spread=3.0):
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    members = RegressionMembers(x.shape[1], size.hidden, 1, size.activations, size.n_members)
    if fast:
        members.features = FastScales(x.shape[1], size.hidden, activation=size.activations, n_members=size.n_members)
        members.features.speed, members.features.spread = fast, spread
    members.features.reset_parameters(generator)
    rows = GroupRows.of(x, y[:, None], None, design, generator)
    [trained] = train_members([members], [rows], plan=size.plan)
    members = trained.members.double()
    members.condition_on(torch.as_tensor(x), torch.as_tensor(y[:, None]), None)
    held = trained.held
    functions = AnchoredFunctions(members.features, members.posterior().mean, members.posterior().root)
    means, relative = functions(x_new)
    noise = held.predictions.noise  # [E, 1]
    return held.predictions.loc[..., 0], held.predictions.variance[..., 0], means[..., 0], relative * noise


def ranks(x, x_new):
    """Inputs and their Gaussian ranks."""
    both = []
    for rows in (x, x_new):
        columns = []
        for k in range(x.shape[1]):
            values = np.sort(x[:, k])
            low, high = np.searchsorted(values, rows[:, k], "left"), np.searchsorted(values, rows[:, k], "right")
            columns.append(special.ndtri((np.clip(0.5 * (low + high), 0.5, len(x) - 0.5)) / len(x)))
        both.append(np.column_stack([rows, np.stack(columns, 1)]))
    return both


def piecewise(x, x_new, n_bins=4):
    """Piecewise-linear in quantiles."""
    both = []
    for rows in (x, x_new):
        columns = [rows]
        for k in range(x.shape[1]):
            edges = np.unique(np.quantile(x[:, k], np.linspace(0, 1, n_bins + 1)))
            for low, high in itertools.pairwise(edges):
                columns.append(2 * (np.clip((rows[:, k] - low) / (high - low), 0, 1) - 0.5)[:, None])
        both.append(np.column_stack(columns))
    return both


def cosines(x, x_new, n=4, seed=0):
    """Four random cosines a column, beside the column."""
    rng = np.random.default_rng(seed)
    frequency, phase = rng.standard_normal((x.shape[1], n)) * 1.5, rng.random((x.shape[1], n)) * 2 * np.pi
    return [
        np.column_stack([rows, (np.sqrt(2) * np.cos(rows[..., None] * frequency + phase)).reshape(len(rows), -1)])
        for rows in (x, x_new)
    ]


# log hyper-parameters: D length scales, amplitude of the Matern, of the linear part, of the constant, noise
def kernel(theta, a, b, *, gradient=False):
    D = a.shape[1]
    ls, amp, lin, const = np.exp(theta[:D]), np.exp(2 * theta[D]), np.exp(2 * theta[D + 1]), np.exp(2 * theta[D + 2])
    sa, sb = a / ls, b / ls
    r2 = np.maximum((sa**2).sum(1)[:, None] + (sb**2).sum(1) - 2 * sa @ sb.T, 0)
    r = np.sqrt(5 * r2)
    e = np.exp(-r)
    matern = amp * (1 + r + r * r / 3) * e
    linear = lin / D * (a @ b.T)
    if not gradient:
        return matern + linear + const
    return matern + linear + const, matern, linear, amp * (5 / 3) * (1 + r) * e


def fit_gp(x, y, start=None, max_iter=60):
    n, D = x.shape
    centre = np.concatenate([np.full(D, 0.5 * math.log(D) + 0.7), [0.0, -1.0, -1.0, -1.5]])
    spread = np.concatenate([np.full(D, 1.5), [1.5, 2.0, 2.0, 2.0]])

    def loss(theta):
        K, matern, linear, slope = kernel(theta, x, x, gradient=True)
        noise = math.exp(2 * theta[D + 3])
        K[np.diag_indices(n)] += noise + 1e-8
        try:
            L = linalg.cholesky(K, lower=True)
        except linalg.LinAlgError:
            return 1e10, np.zeros_like(theta)
        alpha = linalg.cho_solve((L, True), y)
        value = 0.5 * y @ alpha + np.log(np.diag(L)).sum()
        inverse = linalg.lapack.dpotri(L, lower=1)[0]
        inverse = np.tril(inverse) + np.tril(inverse, -1).T
        G = 0.5 * (inverse - np.outer(alpha, alpha))  # d value / dK
        g = np.empty_like(theta)
        W = G * slope  # dK/d log l_k = slope * (x_k - x'_k)²/l_k²
        scaled = x / np.exp(theta[:D])
        g[:D] = 2 * (W.sum(1) @ scaled**2) - 2 * np.einsum("nd,nd->d", scaled, W @ scaled)
        g[D] = 2 * (G * matern).sum()
        g[D + 1] = 2 * (G * linear).sum()
        g[D + 2] = 2 * math.exp(2 * theta[D + 2]) * G.sum()
        g[D + 3] = 2 * noise * np.trace(G)
        z = (theta - centre) / spread
        return value + 0.5 * z @ z, g + z / spread

    first = centre if start is None else start
    return optimize.minimize(loss, first, jac=True, method="L-BFGS-B", options={"maxiter": max_iter}).x


def predict_exactly(theta, x, y, x_new):
    D = x.shape[1]
    K = kernel(theta, x, x)
    K[np.diag_indices(len(x))] += math.exp(2 * theta[D + 3]) + 1e-8
    L = linalg.cholesky(K, lower=True)
    k = kernel(theta, x, x_new)
    half = linalg.solve_triangular(L, k, lower=True)
    mean = half.T @ linalg.solve_triangular(L, y, lower=True)
    prior = math.exp(2 * theta[D]) + math.exp(2 * theta[D + 1]) / D * (x_new**2).sum(1) + math.exp(2 * theta[D + 2])
    return mean, np.maximum(prior - (half**2).sum(0), 1e-10)


def sparse_gp(theta, x, y, x_new, centres):
    """Condition on all rows through the kernel's values at ``centres`` (Nystrom), and the prior variance left over."""
    D = x.shape[1]
    noise, amp = math.exp(2 * theta[D + 3]) + 1e-8, math.exp(2 * theta[D])
    matern = theta.copy()
    matern[D + 1] = matern[D + 2] = -20.0
    K = kernel(matern, centres, centres)
    K[np.diag_indices(len(K))] += 1e-6 * amp
    L = linalg.cholesky(K, lower=True)

    def features(rows):
        hidden = linalg.solve_triangular(L, kernel(matern, centres, rows), lower=True).T
        linear, constant = rows * math.exp(theta[D + 1]) / math.sqrt(D), np.full((len(rows), 1), math.exp(theta[D + 2]))
        return np.column_stack([hidden, linear, constant]), np.maximum(amp - (hidden**2).sum(1), 0.0)

    phi, _ = features(x)
    A = np.eye(phi.shape[1]) + phi.T @ phi / noise
    root = linalg.cholesky(A, lower=True)
    m = linalg.cho_solve((root, True), phi.T @ y / noise)
    new, left = features(x_new)
    return new @ m, (linalg.solve_triangular(root, new.T, lower=True) ** 2).sum(0) + left


def gaussian_process(x, y, x_new, design, *, refit, hyper_rows=400, n_centres=None, subset=False):
    rng = np.random.default_rng(0)

    def predict_gp(theta, x, y, x_new):
        if subset:
            return predict_exactly(theta, x[:n_centres], y[:n_centres], x_new)
        if n_centres and len(x) > n_centres:
            return sparse_gp(theta, x, y, x_new, x[np.random.default_rng(0).permutation(len(x))[:n_centres]])
        return predict_exactly(theta, x, y, x_new)

    some = rng.permutation(len(x))[:hyper_rows]
    theta = fit_gp(x[some], y[some])
    loc, var = np.zeros((len(design.groups), len(x))), np.ones((len(design.groups), len(x)))
    for g, group in enumerate(design.groups):
        inside = ~group.held_out
        own = theta
        if refit:
            mine = some[inside[some]]
            own = fit_gp(x[mine], y[mine], theta, max_iter=20)
        loc[g], var[g] = predict_gp(own, x[inside], y[inside], x)
    mean, variance = predict_gp(theta, x, y, x_new)
    return loc, var, mean[None], variance[None]


def trees(x, y, x_new, design, make):
    loc, spread = np.zeros((len(design.groups), len(x))), np.zeros((len(design.groups), len(x)))
    for g, group in enumerate(design.groups):
        inside = ~group.held_out
        loc[g] = make().fit(x[inside], y[inside]).predict(x)
    return loc, spread, make().fit(x, y).predict(x_new)[None], np.zeros((1, len(x_new)))


def boosted(rate, n, leaves, smallest, depth=None):
    return lambda: HistGradientBoostingRegressor(
        learning_rate=rate,
        max_iter=n,
        max_leaf_nodes=leaves,
        min_samples_leaf=smallest,
        early_stopping=False,
        random_state=0,
        l2_regularization=1.0,
        max_depth=depth,
    )


def extra():
    return ExtraTreesRegressor(100, min_samples_leaf=2, max_features=0.7, random_state=0)


def experts(x, y, x_new, design, size):
    seed = 0
    r, r_new = ranks(x, x_new)
    p, p_new = piecewise(x, x_new)
    c, c_new = cosines(x, x_new)
    yield "base", lambda: networks(x, y, x_new, design, size, seed)
    yield "fast5", lambda: networks(x, y, x_new, design, size, seed + 1, fast=5.0)
    yield "gp-refit", lambda: gaussian_process(x, y, x_new, design, refit=True)
    for n in (200, 300, 400):
        yield f"gp-{n}", lambda n=n: gaussian_process(x, y, x_new, design, refit=True, n_centres=n, hyper_rows=400)
    yield "gp-part", lambda: gaussian_process(x, y, x_new, design, refit=True, n_centres=400, subset=True)
    yield "gp-300h", lambda: gaussian_process(x, y, x_new, design, refit=True, n_centres=300, hyper_rows=300)
    yield "gp", lambda: gaussian_process(x, y, x_new, design, refit=False)
    yield "hgb", lambda: trees(x, y, x_new, design, boosted(0.1, 100, 8, 10))
    yield "hgb-3", lambda: trees(x, y, x_new, design, boosted(0.1, 100, 8, 10, 3))
    yield "hgb-4", lambda: trees(x, y, x_new, design, boosted(0.1, 100, 16, 10, 4))
    yield "hgb-slow", lambda: trees(x, y, x_new, design, boosted(0.05, 200, 16, 5))
    yield "extra", lambda: trees(x, y, x_new, design, extra)
    yield "ranks", lambda: networks(r, y, r_new, design, size, seed + 2)
    yield "piecewise", lambda: networks(p, y, p_new, design, size, seed + 3)
    yield "cosines", lambda: networks(c, y, c_new, design, size, seed + 4)


def bank(name, make, out: Path, only: set[str]) -> None:
    file = out / f"{name.replace(':', '_')}.npz"
    kept = dict(np.load(file)) if file.exists() else {}
    X, y, X_new, y_new = make()
    scaling = Standardiser.fit(X)
    x, x_new = squash(scaling.transform(X)), squash(scaling.transform(X_new))
    units = Standardiser.fit(y[:, None])
    y, y_new = units.transform(y[:, None])[:, 0], units.transform(y_new[:, None])[:, 0]
    size = choose_size(len(x))
    design = Design.choose(x, size.n_members, np.random.default_rng(0), y)
    kept |= {
        "y": y,
        "y_new": y_new,
        "first": design.first,
        "n_inputs": np.array(x.shape[1]),
        "held_out": np.stack([g.held_out for g in design.groups]),
        "region": np.array([g.region for g in design.groups]),
        "factors": design.extrapolation_factors(x),
        "factor_new": InputRange.of(x).extrapolation_factor(x_new),
    }
    for expert, fit in experts(x, y, x_new, design, size):
        if f"{expert}.loc" in kept or (only and expert not in only):
            continue
        started = time.process_time()
        loc, variance, loc_new, variance_new = fit()
        kept |= {f"{expert}.loc": loc, f"{expert}.var": variance, f"{expert}.loc_new": loc_new}
        kept |= {f"{expert}.var_new": variance_new, f"{expert}.seconds": np.array(time.process_time() - started)}
        print(
            f"{name} {x.shape} {expert} {kept[f'{expert}.seconds']:.1f}s "
            f"rmse {np.sqrt(np.mean((y_new - loc_new.mean(0)) ** 2)):.3f}",
            flush=True,
        )
    np.savez(file, **kept)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tables", default="")
    parser.add_argument("--rows", type=int, default=FIT_ROWS)
    parser.add_argument("--experts", default="")
    options = parser.parse_args()
    options.out.mkdir(exist_ok=True, parents=True)
    torch.set_num_threads(1)
    asked = set(options.tables.split(",")) if options.tables else None
    for name, make in tables(options.rows).items():
        if asked is None or name in asked:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                bank(name, make, options.out, {e for e in options.experts.split(",") if e})


if __name__ == "__main__":
    main()

"""Which experts, stacked on rows they have not seen, predict other rows best? Reads what ``expert_bank.py`` kept.

python lab/expert_stacks.py --bank /tmp/bank --rule square
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from scipy import optimize, stats

from vmg.fit.calibration import HeldOut, calibrate

SETS = {
    "base": ["base"],
    "base+fast": ["base", "fast5"],
    "half base, half fast": ["base/2", "fast5/2"],
    "base+gp": ["base", "gp"],
    "base+gp-refit": ["base", "gp-refit"],
    "base+hgb": ["base", "hgb"],
    "base+extra": ["base", "extra"],
    "base+gp-refit+hgb": ["base", "gp-refit", "hgb"],
    "base+gp-refit+hgb-3": ["base", "gp-refit", "hgb-3"],
    "base+gp-refit+hgb-4": ["base", "gp-refit", "hgb-4"],
    "base+gp-400+hgb": ["base", "gp-400", "hgb"],
    "base+gp-300+hgb": ["base", "gp-300", "hgb"],
    "base+gp-200+hgb": ["base", "gp-200", "hgb"],
    "base+gp-part+hgb": ["base", "gp-part", "hgb"],
    "base+gp-refit+extra": ["base", "gp-refit", "extra"],
    "base+gp-refit+hgb+extra": ["base", "gp-refit", "hgb", "extra"],
    "fast+gp-refit+hgb": ["fast5", "gp-refit", "hgb"],
    "ranks+gp-refit+hgb": ["ranks", "gp-refit", "hgb"],
    "halves+gp-refit": ["base/2", "fast5/2", "gp-refit"],
    "halves+gp-refit+hgb": ["base/2", "fast5/2", "gp-refit", "hgb"],
    "half base,ranks +gp-refit+hgb": ["base/2", "ranks/2", "gp-refit", "hgb"],
    "half fast,ranks +gp-refit+hgb": ["fast5/2", "ranks/2", "gp-refit", "hgb"],
    "half base,fast,ranks +gp-refit+hgb": ["base/2", "fast5/2", "ranks/2", "gp-refit", "hgb"],
    "base+fast+gp-refit+hgb": ["base", "fast5", "gp-refit", "hgb"],
    "base,fast,ranks +gp-refit+hgb": ["base", "fast5", "ranks", "gp-refit", "hgb"],
    "base,fast,ranks +gp-refit+hgb+extra": ["base", "fast5", "ranks", "gp-refit", "hgb", "extra"],
    "views": ["base", "ranks", "piecewise", "cosines"],
    "half fast,piecewise +gp-refit+hgb": ["fast5/2", "piecewise/2", "gp-refit", "hgb"],
    "half base,fast,ranks,piecewise +gp-refit+hgb": ["base/2", "fast5/2", "ranks/2", "piecewise/2", "gp-refit", "hgb"],
    "all": ["base", "fast5", "ranks", "piecewise", "cosines", "gp-refit", "hgb", "extra"],
}


def pooled(bank, name):
    """Per group: rows, mean, variance and excess of what an expert says of rows it has not seen; and of new rows."""
    name, _, half = name.partition("/")
    loc, var = bank[f"{name}.loc"], bank[f"{name}.var"]
    loc_new, var_new = bank[f"{name}.loc_new"], bank[f"{name}.var_new"]
    held_out, first = bank["held_out"], bank["first"]
    n_groups, E = len(held_out), len(loc)
    if half:  # one member a group: relu in even groups, tanh in odd ones, and the other way round in the other half
        chosen = [g + n_groups * ((g + (name != "base")) % 2) for g in range(n_groups)]
        loc, var, loc_new, var_new = loc[chosen], var[chosen], loc_new[chosen], var_new[chosen]
        E = len(loc)
    parts = []
    for g in range(n_groups):
        rows = np.flatnonzero(held_out[g] & first)
        mine = np.arange(g, E, n_groups)
        m, v = loc[mine][:, rows], var[mine][:, rows]
        between = m.var(0, ddof=1) if len(mine) > 1 else np.zeros(len(rows))
        if half:  # disagreement is not known: take what new rows have
            between = np.full(len(rows), np.nan)
        excess = np.nan_to_num(between) * (1 / len(mine) - 1 / E) if n_groups < E else np.zeros(len(rows))
        parts.append((rows, m.mean(0), v.mean(0) + np.nan_to_num(between), excess))
    between = loc_new.var(0, ddof=1) if len(loc_new) > 1 else 0.0
    if half:
        typical = between.mean()
        parts = [(r, m, v + typical, np.full(len(r), typical * (1 - 1 / E))) for r, m, v, _ in parts]
    return parts, loc_new.mean(0), var_new.mean(0) + between


def weigh(errors, excess, rule):
    """Weights on the simplex for errors [n, K] of experts."""
    K = errors.shape[1]
    if K == 1:
        return np.ones(1)
    extra = excess.mean(0)

    def square(w):
        return np.mean((errors @ w) ** 2) - extra @ w**2

    def t_score(w):
        e2 = (errors @ w) ** 2
        e2 = e2 * max(0.5, 1 - (extra @ w**2) / e2.mean())
        s = np.median(e2) + 1e-12
        for _ in range(20):
            s = np.mean(5 * e2 / (4 + e2 / s)) + 1e-12
        return -np.mean(stats.t.logpdf(np.sqrt(e2 / s), 4)) + 0.5 * np.log(s)

    def loss(z):
        w = np.exp(z - z.max())
        w /= w.sum()
        total = 0.0
        if rule in ("square", "both"):
            total += 0.5 * np.log(max(square(w), 1e-12))
        if rule in ("t", "both"):
            total += t_score(w)
        prior = 3.0 * np.sum((z - z.mean()) ** 2) / 2 / 9 / len(errors)
        return total + prior

    best = optimize.minimize(loss, np.zeros(K), method="Nelder-Mead", options={"maxiter": 200 * K, "fatol": 1e-6})
    w = np.exp(best.x - best.x.max())
    w /= w.sum()
    w[w < 0.03] = 0
    return w / w.sum()


def stacked(bank, names, rule):
    experts = [pooled(bank, name) for name in names]
    y, y_new = bank["y"], bank["y_new"]
    sets = {False: [], True: []}
    for g, region in enumerate(bank["region"]):
        rows = experts[0][0][g][0]
        factor = bank["factors"][g][rows]
        loc, var, excess = (np.stack([parts[g][k] for parts, _, _ in experts], 1) for k in (1, 2, 3))
        sets[bool(region)].append((y[rows], loc, var * factor[:, None], excess))
    inside = [np.concatenate(part) for part in zip(*sets[False], strict=True)]
    outside = [np.concatenate(part) for part in zip(*sets[True], strict=True)]
    w = (
        weigh(inside[0][:, None] - inside[1], inside[3], rule)
        if rule != "equal"
        else np.full(len(names), 1 / len(names))
    )
    held = []
    for region, (target, loc, var, excess) in ((False, inside), (True, outside)):
        centre = loc @ w
        error = target - centre
        variance = var @ w + ((loc - centre[:, None]) ** 2) @ w
        if not region:
            error = error * np.sqrt(max(0.5, 1 - (excess @ w**2).sum() / (error**2).sum()))
        held.append(HeldOut(error, variance, np.ones(len(error))))
    calibration = calibrate(*held, 0.0)
    loc = np.stack([part[1] for part in experts], 1)
    var = np.stack([part[2] for part in experts], 1) * bank["factor_new"][:, None]
    centre = loc @ w
    variance = var @ w + ((loc - centre[:, None]) ** 2) @ w
    scale = np.sqrt(calibration.noise + calibration.inflation * variance)
    error = y_new - centre
    return {
        "rmse": float(np.sqrt(np.mean(error**2))),
        "log_score": float(stats.t.logpdf(error / scale, calibration.degrees).mean() - np.log(scale).mean()),
        "coverage": float(np.mean(np.abs(error / scale) < stats.t.ppf(0.95, calibration.degrees))),
        "weights": dict(zip(names, np.round(w, 3).tolist(), strict=True)),
        "seconds": float(sum(bank[f"{n.partition('/')[0]}.seconds"] * (0.5 if "/" in n else 1) for n in names)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bank", type=Path, required=True)
    parser.add_argument("--rule", default="both")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--details", default="")
    options = parser.parse_args()
    results = {}
    for file in sorted(options.bank.glob("*.npz")):
        bank = dict(np.load(file))
        for label, names in SETS.items():
            if all(f"{n.partition('/')[0]}.loc" in bank for n in names):
                results[file.stem, label] = stacked(bank, names, options.rule)
    tables = sorted({table for table, _ in results})
    for label in SETS:
        rows = [(t, results[t, label], results[t, "base"]) for t in tables if (t, label) in results]
        if not rows:
            continue
        ratio = np.array([np.log(r["rmse"] / b["rmse"]) for _, r, b in rows])
        gain = np.array([r["log_score"] - b["log_score"] for _, r, b in rows])
        cover = np.mean([r["coverage"] for _, r, _ in rows])
        seconds = np.mean([r["seconds"] for _, r, _ in rows])
        worst = rows[int(ratio.argmax())][0]
        print(
            f"{label:42s} n {len(rows)} dlogRMSE {ratio.mean():+.3f} ({(ratio < -0.01).sum()}-{(ratio > 0.01).sum()}, "
            f"worst {ratio.max():+.3f} {worst:12s}) dlogscore {gain.mean():+.3f} "
            f"({(gain > 0.01).sum()}-{(gain < -0.01).sum()}, worst {gain.min():+.3f}) cover {cover:.3f} {seconds:.1f}s"
        )
        if label == options.details:
            for (t, r, _b), d, g in zip(rows, ratio, gain, strict=True):
                print(f"    {t:22s} {d:+.3f} {g:+.3f} {r['coverage']:.2f} {r['weights']}")
    if options.out:
        with open(options.out, "a") as file:
            for (table, label), one in results.items():
                file.write(json.dumps({"table": table, "experts": label, "rule": options.rule, **one}) + "\n")


if __name__ == "__main__":
    main()

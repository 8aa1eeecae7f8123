"""Which experts, stacked on rows they have not seen, predict other rows best? Reads what ``expert_bank.py`` kept.

    python lab/expert_stacks.py --bank /tmp/bank --rows 120 --out lab/results/experts.jsonl

A stack is compared with networks alone. ``prior`` is the number of rows that the prior of the weights counts as, and
``lean`` its centre: the log weights of networks, process and trees.
"""

from __future__ import annotations

import argparse
import pickle
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from vmg.files import append_lines
from vmg.fit import stacking
from vmg.fit.calibration import calibrate, held_out_errors, known_variance
from vmg.fit.gaussian import inflate
from vmg.fit.noise import fit_noise_field
from vmg.math.distributions import student_log_density

NAMES = {"networks": "networks", "gp": "gaussian_process", "trees": "boosted_trees"}


class Stack(NamedTuple):
    """A rule for weights: of a prior, or fixed."""

    experts: tuple[str, ...]
    prior: float = 30.0
    lean: tuple[float, ...] = (0.0, -1.0, -2.0)
    fixed: tuple[float, ...] = ()
    known: bool = True  # whether variances larger than those of held-out rows are known not to be too large

    def weights(self, held: dict[str, Any]) -> np.ndarray:
        if self.fixed:
            return np.array(self.fixed)
        stacking.PRIOR_ROWS = self.prior
        stacking.LEAN = dict(zip(NAMES.values(), self.lean, strict=True))
        return stacking.weigh([held[name][0] for name in self.experts], [NAMES[name] for name in self.experts])


ALL, EQUAL = ("networks", "gp", "trees"), (0.0, 0.0, 0.0)
STACKS = {
    "networks": Stack(("networks",), fixed=(1.0,)),
    "process": Stack(("gp",), fixed=(1.0,)),
    "networks + process": Stack(("networks", "gp")),
    "networks + trees": Stack(("networks", "trees")),
    "all, equal weights": Stack(ALL, fixed=(1 / 3, 1 / 3, 1 / 3)),
    "all, prior of 3 rows around equal weights": Stack(ALL, 3.0, EQUAL),
    "all, prior of 30 rows around equal weights": Stack(ALL, 30.0, EQUAL),
    "all, prior of 30 rows around networks": Stack(ALL),
    "the same, with variances taken down everywhere": Stack(ALL, known=False),
}


def score(bank: dict[str, Any], stack: Stack) -> dict[str, float]:
    """Scores on new rows of a stack that is calibrated on held-out rows, as the estimator does it."""
    weight = stack.weights(bank["held"])
    folds, regions = (
        stacking.mix_held_out([bank["held"][name][kind] for name in stack.experts], weight) for kind in (0, 1)
    )
    errors = held_out_errors(folds, shrink=True)
    least = float(weight @ [bank["noise"][name] for name in stack.experts])
    found = calibrate(errors, held_out_errors(regions, shrink=False), least)
    at_rows = np.column_stack([bank["x"][folds.position], folds.y - errors.error])
    scale = np.append(bank["input_scale"], 1.0)
    field = fit_noise_field(at_rows, errors, found, scale, np.random.default_rng(0))
    loc, variance = (np.stack([bank["new"][name][part] for name in stack.experts], 1) for part in (0, 1))
    mixed = stacking.mix(loc, variance, weight)
    factor = 1.0 if field is None else field.factor(np.column_stack([bank["x_new"], mixed.loc]))
    inflated = found.inflation * mixed.variance
    if stack.known:
        inflated = inflate(mixed.variance, found.inflation, found.known)
        if "gp" in stack.experts and weight[1] > 0:
            known = known_variance(*(bank["held"]["gp"][kind].variance for kind in (0, 1)))
            inflated = np.maximum(inflated, np.where(variance[:, 1] > known, variance[:, 1], 0.0))
    squared = found.noise * factor + inflated + bank["drift"]
    error = bank["y_new"] - mixed.loc
    return {
        "rmse": np.sqrt(np.mean(error**2)),
        "log_score": student_log_density(error, squared, found.degrees).mean(),
        "coverage": np.mean(np.abs(error) / np.sqrt(squared) < stats.t.ppf(0.95, found.degrees)),
        "seconds": sum(bank["seconds"][name] for name in stack.experts),
        **dict(zip(stack.experts, weight, strict=True)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bank", type=Path, required=True)
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--stacks", type=int, nargs="*", default=range(len(STACKS)), help="Numbers of the rules.")
    parser.add_argument("--label", default="random rows", help="Of the scored rows.")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    lines, chosen = [], [list(STACKS)[k] for k in options.stacks]
    for file in sorted(options.bank.glob(f"*.{options.rows}.*.pkl")):
        bank = pickle.loads(file.read_bytes())
        if np.isfinite(bank["y_new"]).all() and all(np.isfinite(one.loc).all() for one in bank["new"].values()):
            table, _, seed = file.stem.rsplit(".", 2)
            where = {"table": table, "rows": bank["rows"], "seed": int(seed), "scored": options.label}
            for name in chosen:
                stack = STACKS[name]
                found = {part: round(float(value), 4) for part, value in score(bank, stack).items()}
                lines.append({**where, "stack": name, **found})
    if options.out:
        append_lines(options.out, lines)
    alone = [line for line in lines if line["stack"] == "networks"]
    print(f"{len(alone)} fits; changes against networks alone (better–worse by more than 0.01; worst)")
    for name in chosen:
        of_stack = [line for line in lines if line["stack"] == name]
        error = np.array([np.log(a["rmse"] / b["rmse"]) for a, b in zip(of_stack, alone, strict=True)])
        gain = np.array([a["log_score"] - b["log_score"] for a, b in zip(of_stack, alone, strict=True)])
        cover = np.array([line["coverage"] for line in of_stack])
        print(
            f"{name:44s} log RMSE {error.mean():+.3f} ({(error < -0.01).sum()}–{(error > 0.01).sum()}; "
            f"{error.max():+.2f}), log-likelihood {gain.mean():+.3f} ({(gain > 0.01).sum()}–{(gain < -0.01).sum()}; "
            f"{gain.min():+.2f}), coverage {cover.mean():.3f}, tenth percentile {np.quantile(cover, 0.1):.2f}"
        )


if __name__ == "__main__":
    main()

"""Which class probabilities, mixed by rows that experts have not seen, are best? Reads what ``class_bank.py`` kept.

python lab/class_stacks.py --bank /tmp/classes
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from scipy import optimize, special

SETS = [
    ["today"],
    ["quick"],
    ["no-penalty"],
    ["today", "hgb"],
    ["today", "hgb-slow"],
    ["today", "hgb-50"],
    ["today", "hgb-50-3"],
    ["today", "hgb-50-4"],
    ["today", "hgb-31"],
    ["today", "extra"],
    ["today", "hgb", "extra"],
    ["today", "hgb-50", "extra"],
    ["quick", "hgb"],
    ["quick", "hgb-50"],
    ["no-penalty", "hgb"],
    ["quick", "hgb", "extra"],
]


def log_loss(p, y):
    return float(-np.log(np.maximum(p[np.arange(len(y)), y], 1e-12)).mean())


def linear(experts, w):
    return sum(a * p for a, p in zip(w, experts, strict=True))


def geometric(experts, w):
    return special.softmax(sum(a * np.log(np.maximum(p, 1e-9)) for a, p in zip(w, experts, strict=True)), -1)


def weigh(experts, y, pool):
    def loss(z):
        w = np.exp(z - z.max()) / np.exp(z - z.max()).sum() if pool is linear else np.exp(z)
        centre = np.full(len(z), -np.log(len(z))) if pool is geometric else z.mean()
        return log_loss(pool(experts, w), y) + 1.5 * np.sum((z - centre) ** 2) / 4 / len(y)

    start = np.zeros(len(experts)) if pool is linear else np.full(len(experts), -np.log(len(experts)))
    z = optimize.minimize(loss, start, method="Nelder-Mead").x
    if pool is geometric:
        return np.exp(z)
    w = np.exp(z - z.max())
    w /= w.sum()
    w[w < 0.03] = 0
    return w / w.sum()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bank", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    lines = []
    for file in sorted(options.bank.glob("*.npz")):
        bank = dict(np.load(file))
        for names in SETS:
            if any(f"{n}.oof" not in bank for n in names):
                continue
            known = ~np.isnan(bank[f"{names[0]}.oof"][:, 0]) & ~np.isnan(bank[f"{names[-1]}.oof"][:, 0])
            for pool in (linear, geometric) if len(names) > 1 else (linear,):
                w = np.ones(1)
                if len(names) > 1:
                    w = weigh([bank[f"{n}.oof"][known] for n in names], bank["y"][known], pool)
                loss = log_loss(pool([bank[f"{n}.new"] for n in names], w), bank["y_new"])
                seconds = float(sum(bank[f"{n}.seconds"] for n in names))
                lines.append(
                    {
                        "table": file.stem,
                        "experts": "+".join(names),
                        "pool": pool.__name__,
                        "log_loss": loss,
                        "weights": np.round(w, 3).tolist(),
                        "cpu_seconds": round(seconds, 2),
                    }
                )
    today = {line["table"]: line["log_loss"] for line in lines if line["experts"] == "today"}
    for key in dict.fromkeys((line["experts"], line["pool"]) for line in lines):
        mine = [line for line in lines if (line["experts"], line["pool"]) == key]
        d = np.array([np.log(line["log_loss"] / today[line["table"]]) for line in mine])
        print(
            f"{key[0]:22s} {key[1]:10s} n {len(d)} dlog {d.mean():+.3f} "
            f"({(d < -0.005).sum()}-{(d > 0.005).sum()}, worst {d.max():+.3f} "
            f"{mine[int(d.argmax())]['table']}) {np.mean([line['cpu_seconds'] for line in mine]):.1f}s"
        )
    if options.out:
        options.out.write_text("".join(json.dumps(line) + "\n" for line in lines))


if __name__ == "__main__":
    main()

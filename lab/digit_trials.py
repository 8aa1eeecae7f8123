"""Errors on the validation images of MNIST along a run, to choose recipes of table 2 by.

A method of table 2 is trained on the first 50,000 images with some of its settings changed, and read on the last 10,000
training images every few epochs. No test image is scored. One JSON line per reading is appended to the results file; a
run that is there to its end is not run again.

    python lab/digit_trials.py --size 3x250 --seeds 0,1,2 --epochs 60 --set prior_scale=0.15
    python lab/digit_trials.py --method bayes-by-backprop --size 2x400 --epochs 40 --set plain_scale=0.05
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from vmg.files import append_lines, read_lines
from vmg.training import Progress
from vmg_paper.experiments.digits import Digits, load_digits
from vmg_paper.experiments.table2 import fit, validate
from vmg_paper.experiments.table2_methods import (
    DIGIT_METHODS,
    MAX_NOISE,
    MAX_POINTS,
    SCHEDULES,
    DigitMethod,
    parse_size,
)


def option(text: str) -> tuple[str, float]:
    """From "name=number"."""
    name, _, number = text.partition("=")
    return name, float(number)


def changed(method: DigitMethod, options: dict[str, float]) -> DigitMethod:
    """With numbers among its options that differ from the method's own."""
    numbers = sorted(name for name, value in method.options.items() if isinstance(value, float))
    unknown = sorted(set(options) - set(numbers))
    if unknown:
        raise SystemExit(f"{method.name} has the numbers {numbers}; got {unknown}")
    return replace(method, options={**method.options, **options})


def trial(method: DigitMethod, run: dict[str, Any], every: int, digits: Digits, out: Path) -> None:
    """Train, and write down a reading every so many epochs."""
    network = method.make(parse_size(run["size"]), run["points"] or 0, run["max_noise"] or 0)
    recipe = method.recipe(run["epochs"])
    per_epoch = len(digits.train.x) // recipe.batch_size

    def read(progress: Progress) -> None:
        if progress.step % (every * per_epoch) and progress.step != progress.n_steps:
            return
        found = {
            **run,
            "epoch": progress.step // per_epoch,
            **validate([network], digits),
            "training_log_likelihood": progress.expected_log_likelihood,
            "seconds": round(progress.seconds, 3),
            "config": method.config(recipe),
        }
        append_lines(out, [found])
        print(f"{found['epoch']:4d} epochs: {found['validation_error_percent']:.2f} % wrong", flush=True)

    fit(network, digits.train, recipe, run["seed"], tell=read)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="vmg", choices=DIGIT_METHODS)
    parser.add_argument("--size", default="3x150")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--every", type=int, default=10, help="epochs between readings")
    parser.add_argument("--points", type=int, default=MAX_POINTS)
    parser.add_argument("--max-noise", type=float, default=MAX_NOISE)
    parser.add_argument("--learning-rate", type=float, help="the method's own if not given, as the next two")
    parser.add_argument("--averaging", type=float)
    parser.add_argument("--schedule", choices=SCHEDULES)
    parser.add_argument("--raw", action="store_true", help="pixels as they are, not less their mean")
    parser.add_argument("--set", type=option, action="append", default=[], metavar="NAME=NUMBER", help="for the layers")
    parser.add_argument("--out", type=Path, default=Path("lab/results/digit_trials.jsonl"))
    args = parser.parse_args()

    given = {name: getattr(args, name) for name in ("learning_rate", "averaging", "schedule")}
    method = replace(DIGIT_METHODS[args.method], **{name: value for name, value in given.items() if value is not None})
    method = changed(method, dict(args.set))
    digits = load_digits() if args.raw else load_digits().centred()
    for seed in map(int, args.seeds.split(",")):
        run = {
            "experiment": "digit_trials",
            "method": method.name,
            "size": args.size,
            "seed": seed,
            "points": args.points if method.has_points else None,
            "max_noise": args.max_noise if method.has_points else None,
            "epochs": args.epochs,
            "raw": args.raw,
        }
        last = {**run, "epoch": args.epochs, "config": method.config(method.recipe(args.epochs))}
        if any(last.items() <= record.items() for record in read_lines(args.out)):
            continue
        print(f"{method.name} {args.size}, seed {seed}, {last['config']}", flush=True)
        trial(method, run, args.every, digits, args.out)


if __name__ == "__main__":
    main()

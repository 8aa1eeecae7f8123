"""Methods on the tables of ``hard_tables.py``, each with its own defaults; one JSON line a table and method.

    python lab/hard_study.py --part validation --methods table,catboost
    python lab/hard_study.py --show

``--part validation`` splits the training part (three quarters to fit, one to score) and is what settings are chosen by;
``--part test`` scores the test part once settings are chosen. Errors are in standard deviations of the scored targets.
"""

from __future__ import annotations

import argparse
import time
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from hard_tables import CLASSIFICATION, REGRESSION, Table

from vmg.files import read_lines
from vmg_paper.experiments.results_file import measure_missing

RESULTS = Path(__file__).parent / "results" / "hard_tables.jsonl"
LEVELS = np.linspace(0.005, 0.995, 100)  # of quantiles, for the CRPS as twice the mean pinball loss
SMALL = 1e-12


def rows_of(table: Table, part: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows to fit to and rows to score."""
    train, test = table.parts()
    if part == "test":
        return train, test
    cut = round(0.75 * len(train))
    return train.iloc[:cut].reset_index(drop=True), train.iloc[cut:].reset_index(drop=True)


# -- methods: (fit rows, scored rows, table) -> predictions of the scored rows ----------------------------------------


def table_default(fit: pd.DataFrame, held: pd.DataFrame, table: Table, **options: object) -> dict[str, np.ndarray]:
    """The default of this library."""
    import vmg

    kind = vmg.TableRegressor if table.task == "regression" else vmg.TableClassifier
    model = kind(random_state=0, **options).fit(fit.drop(columns=table.target), fit[table.target])
    prediction = model.pred_dist(held.drop(columns=table.target))
    if table.task == "classification":
        return {"classes": model.classes_, "p": prediction.probabilities}
    y = held[table.target].to_numpy(dtype=float)
    return {
        "mean": prediction.mean,
        "log_prob": prediction.log_prob(y),
        "quantiles": prediction.quantile(LEVELS).T,
        "interval": prediction.interval(0.9),
        "choice": np.array([model.likelihood_]),
    }


def student(fit: pd.DataFrame, held: pd.DataFrame, table: Table) -> dict[str, np.ndarray]:
    """The default with a Student t for every number."""
    return table_default(fit, held, table, **({"likelihood": "student"} if table.task == "regression" else {}))


def catboost(fit: pd.DataFrame, held: pd.DataFrame, table: Table) -> dict[str, np.ndarray]:
    """CatBoost with its own defaults, raw categories, and a normal distribution where it predicts one."""
    from catboost import CatBoostClassifier, CatBoostRegressor

    X, X_held = (part.drop(columns=table.target) for part in (fit, held))
    words = [name for name in X if X[name].dtype.kind not in "iufb"]
    X, X_held = (
        part.assign(**{n: part[n].astype(object).where(part[n].notna(), "").astype(str) for n in words})
        for part in (X, X_held)
    )
    options = {
        "random_seed": 0,
        "verbose": False,
        "allow_writing_files": False,
        "thread_count": 1,
        "cat_features": words,
    }
    if table.task == "classification":
        model = CatBoostClassifier(**options).fit(X, fit[table.target])
        return {"classes": model.classes_, "p": model.predict_proba(X_held)}
    point = CatBoostRegressor(**options).fit(X, fit[table.target]).predict(X_held)
    spread = CatBoostRegressor(loss_function="RMSEWithUncertainty", **options).fit(X, fit[table.target]).predict(X_held)
    return normal(
        point, spread[:, 0], np.sqrt(np.maximum(spread[:, 1], SMALL)), held[table.target].to_numpy(dtype=float)
    )


def normal(point: np.ndarray, mean: np.ndarray, std: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    """A normal distribution of each row."""
    from scipy import stats

    return {
        "mean": point,
        "log_prob": stats.norm.logpdf(y, mean, std),
        "quantiles": stats.norm.ppf(LEVELS[:, None], mean, std),
        "interval": np.stack([stats.norm.ppf(q, mean, std) for q in (0.05, 0.95)], -1),
    }


def networks(fit: pd.DataFrame, held: pd.DataFrame, table: Table) -> dict[str, np.ndarray]:
    """The default without experts beside the networks."""
    return table_default(fit, held, table, experts="networks")


METHODS = {"table": table_default, "table-student": student, "table-networks": networks, "catboost": catboost}


# -- scores -----------------------------------------------------------------------------------------------------------


def score(predicted: dict[str, np.ndarray], fit: pd.DataFrame, held: pd.DataFrame, table: Table) -> dict[str, object]:
    """Scores of one method on one table."""
    if table.task == "classification":
        labels = held[table.target].astype(str).to_numpy()
        classes = np.array([str(c) for c in predicted["classes"]])
        place = {name: k for k, name in enumerate(classes)}
        known = np.array([label in place for label in labels])
        p = predicted["p"][known]
        right = p[np.arange(len(p)), [place[label] for label in labels[known]]]
        return {
            "log_loss": float(-np.log(np.maximum(right, 1e-15)).mean()),
            "accuracy": float((p.argmax(1) == [place[x] for x in labels[known]]).mean()),
        }
    y, seen = held[table.target].to_numpy(dtype=float), fit[table.target].to_numpy(dtype=float)
    scale = float(np.std(y)) or 1.0
    error = y - predicted["quantiles"]
    pinball = np.maximum(LEVELS[:, None] * error, (LEVELS[:, None] - 1) * error)
    low, high = predicted["interval"].T
    beyond = np.maximum(predicted["mean"] - seen.max(), seen.min() - predicted["mean"]) / (seen.max() - seen.min())
    return {
        "rmse": float(np.sqrt(np.mean((y - predicted["mean"]) ** 2)) / scale),
        "log_score": float(np.mean(predicted["log_prob"]) + np.log(scale)),
        "worst_log_score": float(np.min(predicted["log_prob"]) + np.log(scale)),
        "crps": float(2 * pinball.mean() / scale),
        "coverage": float(np.mean((y >= low) & (y <= high))),
        "beyond": float(beyond.max()),  # how far a mean leaves the range of training targets, in widths of it
        "choice": str(predicted["choice"][0]) if "choice" in predicted else "",
    }


def run(tables: list[Table], methods: list[str], part: str, out: Path, label: str) -> None:
    """Fit and score what is not in the results file yet."""

    def measure(table: Table, method: str) -> dict[str, object]:
        fit, held = rows_of(table, part)
        started = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            scores = score(METHODS[method](fit, held, table), fit, held, table)
        return {"rows": len(fit), **scores, "cpu_seconds": round(time.process_time() - started, 2)}

    def key(table: Table, method: str) -> dict[str, object]:
        return {"table": table.key, "task": table.task, "method": method + label, "part": part}

    pairs = [(table, method) for table in tables for method in methods]
    measure_missing(((key(*pair), partial(measure, *pair)) for pair in pairs), out)


def show(path: Path, part: str) -> None:
    """Geometric means over the best of each table, ranks and the worst table, by method."""
    lines = pd.DataFrame([line for line in read_lines(path) if line["part"] == part])
    for task, scores in (("regression", ("rmse", "crps", "log_score")), ("classification", ("log_loss",))):
        of_task = lines[lines["task"] == task]
        for name in scores if len(of_task) else ():
            grid = of_task.pivot_table(index="table", columns="method", values=name).dropna()
            if name == "log_score":
                print(
                    f"\n{name}: mean, and mean rank\n",
                    pd.DataFrame({"mean": grid.mean(), "rank": grid.rank(axis=1, ascending=False).mean()}),
                )
                continue
            ratio = grid.div(grid.min(axis=1), axis=0)
            summary = {
                "over best": np.exp(np.log(ratio).mean()),
                "worst": ratio.max(),
                "worst table": ratio.idxmax(),
                "rank": grid.rank(axis=1).mean(),
            }
            print(f"\n{name} on {len(grid)} tables\n", pd.DataFrame(summary))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default="table,table-student,catboost")
    parser.add_argument("--part", choices=("validation", "test"), default="validation")
    parser.add_argument("--task", choices=("regression", "classification"))
    parser.add_argument("--label", default="", help="Added to the names of methods, to tell variants apart.")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--show", action="store_true")
    options = parser.parse_args()
    if not options.show:
        tables = [t for t in REGRESSION + CLASSIFICATION if options.task in (None, t.task)]
        run(tables, options.methods.split(","), options.part, options.out, options.label)
    show(options.out, options.part)


if __name__ == "__main__":
    main()

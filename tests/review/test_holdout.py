"""Scores of ``vmg fit`` on held-out rows, what ``inspect`` and ``evaluate`` say, and runs that are gone on with."""

import io
import json
import os
import sys

import numpy as np
import pandas as pd
import pytest

import vmg
from vmg.estimators import TableModel
from vmg.review.comparison import RowScores, join_scores
from vmg.review.holdout import Holdout
from vmg.tables import TableError

pytestmark = pytest.mark.usefixtures("empty_folder")
QUICK = ["--max-iter", "3", "--hidden", "8", "--members", "2", "--likelihood", "student"]


@pytest.fixture
def shops():
    rng = np.random.default_rng(0)
    n = 100
    frame = pd.DataFrame(
        {
            "shop": rng.choice(list("abcde"), n),
            "day": pd.date_range("2021-01-01", periods=n).strftime("%d/%m/%Y"),
            "x": rng.normal(size=n).round(3),
        }
    )
    frame["y"] = (3 * frame["x"] + rng.normal(size=n)).round(3)
    frame["y_usd"] = (1.1 * frame["y"]).round(4)
    frame.to_csv("shops.csv", index=False)
    return frame


def test_fit_prints_a_score_beside_three_others_and_keeps_it(shops, vmg_command):
    code, out, _ = vmg_command("fit", "shops.csv", "-t", "y", "--ignore", "y_usd", *QUICK)
    assert code == 0
    for words in ("Held out: 20 rows at random", "base rate", "linear", "gradient boosting", "likelihood", "RMSE"):
        assert words in out
    model = vmg.load("shops.vmg")
    assert set(model.held_out["scores"]) == {"table", "base rate", "linear", "gradient boosting"}
    assert model.held_out["sentence"] in out and model.held_out["rows"] == 20
    assert len(model.inputs.reference.digests) == 100  # the model that is written saw all rows
    assert not os.path.exists("shops.vmg.partial")


def test_scores_of_a_conformal_fit_are_of_conformal_intervals(shops, vmg_command):
    """As those of the model that is written, where held-out fits have rows enough to calibrate."""
    scores, command = [], ["fit", "shops.csv", "-t", "y", "--ignore", "y_usd", *QUICK, "--json"]
    for options in ([], ["--conformal", "0.3"], ["--conformal", "0.2"]):
        scores.append(json.loads(vmg_command(*command, *options)[1])["held_out"]["scores"])
    held = Holdout().splits(shops, shops["y"].to_numpy(), 0)[0]
    inside = TableModel.fit(
        shops.iloc[held[0]].drop(columns="y_usd"),
        "y",
        conformal=0.3,
        options={"max_iter": 3, "hidden_layer_sizes": (8,), "n_members": 2, "likelihood": "student", "random_state": 0},
    )
    assert scores[1]["table"]["width"] == pytest.approx(inside.evaluate(shops.iloc[held[1]])["width"])
    widths = [one["table"]["width"] for one in scores]
    assert widths[1] != widths[0] == widths[2]  # 16 rows are too few
    _, out, _ = vmg_command(*command[:-1], "--conformal", "0.2")
    assert "Held-out fits have too few rows to calibrate" in out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--cv", "4"], "100 rows in 4 folds at random"),
        (["--holdout-by", "shop"], "in whole groups of 'shop'"),
        (["--time", "day"], "20 rows, the last by 'day'"),
        (["--no-holdout"], None),
    ],
)
def test_ways_of_holding_out(shops, vmg_command, options, words):
    code, out, _ = vmg_command("fit", "shops.csv", "-t", "y", "--ignore", "y_usd", *QUICK, *options)
    assert code == 0
    assert ("Held out" not in out) if words is None else (words in out)


def test_splits_are_what_they_say(shops):
    y = shops["y"].to_numpy()
    [(inside, held)] = Holdout(0.2).splits(shops, y, 0)
    assert len(held) == 20 and not set(inside) & set(held) and len(inside) + len(held) == 100
    folds = Holdout(folds=5).splits(shops, y, 0)
    assert sorted(np.concatenate([held for _, held in folds])) == list(range(100))
    for inside, held in Holdout(folds=5, by="shop").splits(shops, y, 0):
        assert not set(shops["shop"].iloc[inside]) & set(shops["shop"].iloc[held])
    [(inside, held)] = Holdout(0.3, time="day").splits(shops.sample(frac=1, random_state=0), y, 0)
    days = pd.to_datetime(shops.sample(frac=1, random_state=0)["day"], format="%d/%m/%Y").to_numpy()
    assert days[inside].max() < days[held].min() and len(held) == 30
    labels = np.array(["rare"] * 10 + ["often"] * 90)
    [(_, held)] = Holdout(0.2).splits(shops, labels, 0)
    assert (labels[held] == "rare").sum() == 2
    assert Holdout(0.2).splits(shops.iloc[:12], y[:12], 0) == []
    for wrong in ({"share": 0.0}, {"folds": 1}, {"by": "shop", "time": "day"}):
        with pytest.raises(TableError):
            Holdout(**wrong)


@pytest.mark.parametrize(
    ("others", "words"),
    [
        ({"base rate": 9.0, "linear": 4.0}, "below the base rate's, and no other method here comes near"),
        ({"base rate": 9.0}, "below the base rate's; no other method was compared"),
        ({"base rate": 9.0, "linear": 0.25}, "but linear is better on these 50 rows (0.5 against 1)"),
        ({"base rate": 1.0, "linear": 4.0}, "not surely better than the base rate: do not rely on it"),
        ({"base rate": 9.0, "linear": None}, "50 rows cannot tell which is better"),
    ],
)
def test_the_sentence_says_no_more_than_rows_can_tell(others, words):
    noisy = (np.random.default_rng(0).normal(1, 3, 50) ** 2).tolist()
    losses = {"table": [1.0] * 50} | {
        name: [value] * 50 if value is not None else noisy for name, value in others.items()
    }
    if others.get("linear", 4.0) is None:
        losses["table"] = (np.random.default_rng(1).normal(1, 3, 50) ** 2 / 4).tolist()
        losses["linear"] = losses["table"][::-1]
        losses["base rate"] = (np.array(losses["table"]) + 20).tolist()
    zero = [0.0] * 50
    parts = [RowScores(0, name, loss, zero, zero, zero, zero) for name, loss in losses.items()]
    assert words in join_scores("regression", parts).sentence


def test_an_interrupted_run_goes_on_with_the_folds_it_has(shops, vmg_command, monkeypatch):
    from vmg.review.holdout import Plan

    real, calls = Plan.score_own, []

    def compare(*arguments):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(Plan, "score_own", compare)
    command = ["fit", "shops.csv", "-t", "y", "--cv", 4, *QUICK]
    code, _, err = vmg_command(*command)
    assert code == 130 and "Kept in shops.vmg.partial: the scores of 2 held-out fits; --resume goes on." in err
    assert not os.path.exists("shops.vmg")
    code, _, err = vmg_command(*command, "--seed", 1, "--resume")
    assert code == 2 and "must be of a run with the same options; got another" in err
    calls[:] = [1] * 5
    code, out, _ = vmg_command(*command, "--resume")
    assert code == 0 and len(calls) == 7 and "100 rows in 4 folds" in out  # two more, not four
    assert not os.path.exists("shops.vmg.partial")


def test_evaluate_shows_the_base_rate_and_knows_training_rows(shops, vmg_command):
    shops.iloc[:60].to_csv("train.csv", index=False)
    shops.iloc[60:].to_csv("test.csv", index=False)
    vmg_command("fit", "train.csv", "-t", "y", "--no-holdout", *QUICK)
    code, out, _ = vmg_command("evaluate", "train.vmg", "train.csv")
    assert code == 0 and "base rate" in out and "100% of these rows are rows that the model was fitted to" in out
    code, out, _ = vmg_command("evaluate", "train.vmg", "test.csv")
    assert code == 0 and "fitted to" not in out
    _, out, _ = vmg_command("evaluate", "train.vmg", "test.csv", "--json")
    found = json.loads(out)
    y = shops["y"].to_numpy()
    assert found["training_rows"] == 0
    assert found["base_rate"]["rmse"] == pytest.approx(np.sqrt(np.mean((y[60:] - y[:60].mean()) ** 2)))


def test_inspect_writes_nothing_and_says_what_is_suspicious(shops, vmg_command):
    before = sorted(os.listdir())
    code, out, _ = vmg_command("inspect", "shops.csv", "--target", "y")
    assert code == 0 and sorted(os.listdir()) == before
    for words in ("shop", "category", "date", "target", "Dates in 'day' read as day/month/year", "'y_usd' alone tells"):
        assert words in out
    _, out, _ = vmg_command("inspect", "shops.csv", "-t", "y", "--ignore", "y_usd", "--categorical", "x", "--json")
    found = json.loads(out)
    roles = {column["name"]: (column["type"], column["role"]) for column in found["columns"]}
    assert roles["y_usd"][1] == "ignored" and roles["x"] == ("category", "input") and found["suspicions"] == []
    code, _, err = vmg_command("inspect", "shops.csv", "--target", "z")
    assert code == 2 and "no column 'z'" in err


def test_standard_input_and_kept_columns(shops, vmg_command, monkeypatch):
    vmg_command("fit", "shops.csv", "-t", "y", "--no-holdout", *QUICK)

    class Standard:
        buffer = io.BytesIO(shops.iloc[:3].to_csv(index=False).encode())

    monkeypatch.setattr(sys, "stdin", Standard)
    code, out, _ = vmg_command("predict", "shops.vmg", "-", "--keep", "shop,day")
    lines = out.splitlines()
    assert code == 0 and lines[0].startswith("shop,day,y,y_std,y_lower,y_upper") and len(lines) == 4
    assert lines[1].startswith(f"{shops['shop'][0]},{shops['day'][0]},")
    code, _, err = vmg_command("predict", "shops.vmg", "shops.csv", "--keep", "colour")
    assert code == 2 and "no column 'colour'" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--holdout", "2"], "share of rows to hold out must be between 0 and 1; got 2"),
        (["--cv", "1"], "number of folds must be at least 2; got 1"),
        (["--holdout-by", "colour"], "the table has no column 'colour'; it has 'shop'"),
        (["--time", "shop"], "must hold dates or numbers in every row"),
        (["--likelihood", "guess"], "must be one of auto, student"),
        (["--likelihood", "censored"], "censored takes two numbers a row"),
        (["--likelihood", "beta"], "does not suit the likelihood"),
        (["--decimal", ";"], "decimal must be a point or a comma"),
        (["--categorical", "colour"], "no column 'colour'"),
        (["--date-format", "day=%d"], "a date format must be like"),
        (["--preset", "slow"], "Invalid value for '--preset'"),
        (["-o", "-"], "must be a file; got -"),
    ],
)
def test_mistakes(shops, vmg_command, arguments, message):
    code, _, err = vmg_command("fit", "shops.csv", "-t", "y", "--max-iter", 3, "--members", 2, *arguments)
    assert code == 2 and message in err and err.count("\n") == 1


def test_presets_reach_the_estimator(shops, vmg_command):
    vmg_command("fit", "shops.csv", "-t", "y", "--no-holdout", "--preset", "fast", "--max-iter", "2")
    assert vmg.load("shops.vmg").estimator.n_members == 4


def test_a_random_split_of_rows_with_dates_says_that_it_does_not_test_later_ones():
    frame = pd.DataFrame({"sold": pd.date_range("2020-01-01", periods=30).strftime("%Y-%m-%d"), "x": np.arange(30.0)})
    assert "--time 'sold' holds out the last rows" in Holdout().caution(frame)
    assert "in whole groups" in Holdout(by="x").caution(frame)
    assert not Holdout(time="sold").caution(frame) and not Holdout().caution(frame[["x"]])


@pytest.mark.parametrize("jitter", [0.0, 1e-6])
@pytest.mark.parametrize("folds", [0, 5])
def test_copies_of_a_row_are_held_out_together(folds, jitter):
    rows = pd.DataFrame({"x": np.arange(60.0), "word": ["a", "b", None] * 20, "hole": np.nan, "y": np.arange(60.0)})
    frame = pd.concat([rows] * 2)  # of which the index has every label twice
    frame["x"] += jitter * np.random.default_rng(0).normal(size=120)
    for fitted, held in Holdout(folds=folds).splits(frame, frame["y"].to_numpy(), 0):
        assert not {*frame["y"].iloc[fitted]} & {*frame["y"].iloc[held]} and len(held) > 10


def test_rows_that_are_left_out_or_repeated_are_said(shops, vmg_command):
    more = pd.concat([shops, shops[:30], shops[:1].assign(y=1e9)])
    more.to_csv("more.csv", index=False)
    code, out, _ = vmg_command("fit", "more.csv", "-t", "y", "--ignore", "y_usd", "--no-holdout", *QUICK)
    said = " ".join(out.split())
    assert code == 0 and "30 of 130 rows repeat others" in said
    assert "1 row left out: the target is absurdly far beyond all others." in said


def test_gaps_are_inside_the_range_and_equal_values_stay_together():
    frame = pd.DataFrame({"x": np.random.default_rng(0).permutation(60) // 2, "y": 0.0})
    for folds, sizes in ((0, [20]), (3, [12, 12, 12])):
        splits = Holdout(folds=folds, gap="x").splits(frame, np.zeros(60), 0)
        assert [len(held) for _, held in splits] == sizes
        for fitted, held in splits:
            inside, outside = frame["x"].to_numpy()[held], frame["x"].to_numpy()[fitted]
            assert outside.min() < inside.min() and inside.max() < outside.max() and not set(inside) & set(outside)
    with pytest.raises(TableError, match="in gaps; got two"):
        Holdout(gap="x", time="x")


def test_targets_beyond_a_limit_are_censored(shops, vmg_command):
    shops.assign(y=shops["y"].clip(-1, 2)).to_csv("sensor.csv", index=False)
    command = ["fit", "sensor.csv", "-t", "y", "--ignore", "y_usd", "--lower-limit", "-1", "--upper-limit", "2"]
    assert vmg_command(*command, "--max-iter", 3, "--members", 2)[0] == 0
    model = vmg.load("sensor.vmg")
    assert model.estimator.limits == (-1, 2) and set(model.held_out["scores"]) > {"table", "linear"}
    assert vmg_command("predict", "sensor.vmg", "sensor.csv", "-o", "p.csv")[0] == 0
    assert pd.read_csv("p.csv")["y_upper"].max() > 2
    kinds, both = (["--task", "classification"], ["--likelihood", "beta"], ["--balanced"]), ["--by", "shop", "--pool"]
    others = (["--conformal", "0.2"], both, ["--stream"], ["--lower-limit", "3"], ["--lower-limit", "nan"])
    for options in (*kinds, *others):
        code, _, err = vmg_command(*command, *options)
        assert code == 2 and err.count("\n") == 1 and ("limit" in err or "is for classes" in err)

"""``vmg compare``: the same folds for all methods, scores against references, and an honest verdict."""

import importlib.metadata
import json

import numpy as np
import pandas as pd
import pytest
import scoringrules
from scipy import stats
from sklearn.model_selection import KFold

import vmg
from vmg.review.comparison import RowScores, join_scores, score_classes
from vmg.review.rivals import LEVELS, RIVALS, Forecast, Rival, RivalRows, find_rivals
from vmg.tables import TableError

pytestmark = pytest.mark.usefixtures("empty_folder")


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.normal(size=60), "shop": rng.choice(list("abcdef"), 60)})
    return frame, 3 * frame["x"].to_numpy() + rng.normal(size=60)


@pytest.mark.parametrize("quantiles", [False, True])
def test_scores_of_normal_distributions_and_their_quantiles_are_those_of_scipy_and_scoringrules(quantiles):
    mean, std, y = np.random.default_rng(0).uniform(0.5, 2, (3, 20))
    normal = stats.norm(mean, std)
    found = Forecast(mean, std, normal.ppf(LEVELS[:, None]).T if quantiles else None)
    log_prob, crps, interval = found.score(y, 0.9)
    np.testing.assert_allclose(log_prob, normal.logpdf(y))
    np.testing.assert_allclose(crps, scoringrules.crps_normal(y, mean, std), rtol=0.05 if quantiles else 1e-7)
    np.testing.assert_allclose(interval.T, normal.interval(0.9))


def test_class_scores_are_those_of_the_metrics():
    p, place = np.random.default_rng(0).dirichlet(np.ones(3), 30), np.arange(30) % 3
    scores = score_classes(p, place)
    np.testing.assert_allclose(np.mean(scores["crps"]), vmg.metrics.brier_score(p, place))
    np.testing.assert_allclose(1 - np.mean(scores["hit"]), vmg.metrics.error_rate(p, place))


@pytest.mark.parametrize("classes", [False, True])
@pytest.mark.parametrize("name", list(RIVALS))
def test_every_installed_method_predicts_held_out_rows(table, name, classes):
    rival = RIVALS[name]
    pytest.importorskip(rival.package)
    if (rival.classes if classes else rival.numbers) is None:
        pytest.skip("it does not predict classes")
    X, y = table
    found = vmg.compare(X, np.where(y > 0, "high", "low") if classes else y, rivals=[name], folds=2)
    scores, base = found.scores[name], found.scores["base rate"]
    assert np.isfinite(list(scores.values())).all()
    if classes:
        assert scores["accuracy"] > 0.3
    else:  # their intervals may hold next to nothing: ngboost learns thirty rows by heart
        assert scores["rmse"] <= base["rmse"] and 0 < scores["coverage"] <= 1
    assert found.n_rows == 60 and found.seconds[name] > 0


def test_the_spread_of_a_method_is_that_of_its_quantiles_or_of_its_errors_on_folds():
    rng, fits = np.random.default_rng(0), []
    X, y = rng.normal(size=(300, 2)), rng.normal(size=300)

    class Zero:
        def fit(self, X, y):
            fits.append(len(y))
            return self

        def predict(self, X):
            return np.zeros(len(X))

    rows = RivalRows(X, pd.DataFrame(X))
    for slow, sizes in ((True, [300, 200]), (False, [300, 200, 200, 200])):
        fits.clear()
        found = Rival("pyarrow", lambda _: Zero(), slow=slow).predict_numbers(rows, y, rows)
        assert fits == sizes
        _, first = next(KFold(3, shuffle=True, random_state=0).split(y))
        np.testing.assert_allclose(found.std, np.sqrt(np.mean((y[first] if slow else y) ** 2)))
    steps = Rival("pyarrow", lambda _: Zero(), quantiles=lambda _, X: np.tile(LEVELS, (len(X), 1)))
    found = steps.predict_numbers(rows, y, rows)
    np.testing.assert_allclose((found.mean[0], found.std[0]), (LEVELS.mean(), LEVELS.std()))


def test_the_version_of_a_package_without_one_of_its_own_is_that_of_its_distribution():
    assert Rival("typing_extensions", None).version == importlib.metadata.version("typing_extensions")


def test_a_repeated_comparison_runs_only_what_is_new(table):
    X, y = table
    told = []
    first = vmg.compare(X, y, rivals=["linear"], folds=2, results="kept.jsonl", tell=told.append)
    assert len(told) == 6  # table, base rate, linear
    second = vmg.compare(X, y, rivals=["linear", "forest"], folds=2, results="kept.jsonl", tell=told.append)
    assert [line.split(": ")[1].split(",")[0] for line in told[6:]] == ["forest", "forest"]
    assert second.scores["linear"] == first.scores["linear"]
    with pytest.raises(ValueError, match="must be of a run with the same rows"):
        vmg.compare(X, y + 1, rivals=["linear"], folds=2, results="kept.jsonl")


def test_rows_of_a_group_count_as_one_observation():
    rng = np.random.default_rng(0)
    groups, shift = np.repeat(np.arange(8), 25), np.repeat(rng.normal(0.3, 1, 8), 25)
    zero = [0.0] * 200
    parts = [RowScores(0, name, zero, zero, crps, zero, zero) for name, crps in (("table", zero), ("base rate", shift))]
    low, high = join_scores("regression", parts, groups=groups).gains["base rate"]
    means = shift[::25]
    np.testing.assert_allclose((high - low) / 4, means.std(ddof=1) / np.sqrt(8))
    alone = join_scores("regression", parts).gains["base rate"]
    assert alone[1] - alone[0] < (high - low) / 3


def test_copies_of_a_row_count_as_one_observation():
    rng = np.random.default_rng(0)
    rows = pd.DataFrame({"x": rng.normal(size=30)}).assign(y=lambda rows: rows["x"] + rng.normal(size=30))
    ends = []
    for copies in (1, 20):
        table = pd.concat([rows] * copies, ignore_index=True)
        found = vmg.compare(table[["x"]], table["y"], rivals=["linear"], folds=2)
        assert "worst_group" not in found.scores["table"]
        ends.append(np.ptp(found.gains["base rate"]))
    assert 0.5 < ends[1] / ends[0] < 2  # 0.2 where each copy counts


@pytest.mark.parametrize(
    ("crps", "seconds", "words"),
    [
        (2.0, 1.0, "Choose table"),
        (0.5, 1.0, "Choose other: its CRPS is 50% below that of table"),
        (1.0, 0.1, "Choose other if time counts"),
        (1.0, 1.0, "cannot tell it from 'other'"),
    ],
)
def test_the_advice_names_the_better_method(crps, seconds, words):
    one = [1.0] * 40
    scores = {"table": (1.0, 1.0), "base rate": (9.0, 0.1), "other": (crps, seconds)}
    parts = [RowScores(0, name, one, one, [size] * 40, one, one, time) for name, (size, time) in scores.items()]
    found = join_scores("regression", parts)
    assert words in found.advice and found.advice in str(found)
    assert found.ranks["base rate"] == 3 and found.rows[-1]["method"] == "base rate"


def test_what_cannot_be_run_is_named(monkeypatch):
    monkeypatch.setattr("vmg.review.rivals.find_spec", lambda name: None)
    usable, notes = find_rivals(["catboost", "gp"], classes=True)
    assert not usable and "catboost is not installed" in notes[0] and "gp is left out: it does not predict" in notes[1]
    with pytest.raises(TableError, match="no method 'magic' to compare with; there are 'base rate'"):
        find_rivals(["magic"], classes=False)


def test_the_worst_group_is_that_with_the_lowest_coverage():
    hit, zero = [1.0] * 10 + [0.5] * 10 + [0.0] * 3, [0.0] * 23  # the last group is too small to count
    parts = [RowScores(0, name, zero, zero, zero, hit, zero) for name in ("table", "base rate")]
    found = join_scores("regression", parts, groups=np.repeat([0, 1, 2], [10, 10, 3]), by_group=True)
    assert found.scores["table"]["worst_group"] == 0.5
    assert "worst_group" not in join_scores("regression", parts).scores["table"]


@pytest.mark.parametrize("options", [[], ["--by", "shop"], ["--time", "x"], ["--gap", "x"]])
def test_the_command_compares_on_the_same_rows(table, vmg_command, options):
    X, y = table
    X.assign(price=y).to_csv("homes.csv", index=False)
    command = ["compare", "homes.csv", "-t", "price", "--with", "linear", "--folds", 2, "--preset", "fast", *options]
    code, out, err = vmg_command(*command, "--out", "page.md")
    assert code == 0 and "base rate" in out and "CPU s" in out and "fold 2 of 2: linear" in err
    with open("page.md", encoding="utf-8") as page:
        assert page.read().startswith("| method | rmse |")
    assert vmg_command(*command, "--out", "page.html", "--quiet")[0] == 0
    with open("page.html", encoding="utf-8") as page:
        text = page.read()
    assert "<h1>price in homes.csv</h1>" in text and ">linear</text>" in text and ">table</text>" not in text
    code, out, err = vmg_command(*command, "--json")
    found = json.loads(out)
    assert code == 0 and not err and {row["method"] for row in found["methods"]} == {"table", "base rate", "linear"}

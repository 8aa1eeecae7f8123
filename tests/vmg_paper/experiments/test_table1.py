"""The runner of Table 1, on real data with the fastest of its methods."""

import json
from pathlib import Path

import numpy as np
import pytest

from vmg.cli.app import run
from vmg.files import read_lines
from vmg.variational import VMGRegressor
from vmg_paper.data import load_table, standard_splits
from vmg_paper.experiments import table1
from vmg_paper.experiments.published import BEST, BEST_ONE_LAYER, PAPER_BASELINES, PAPER_TABLE1
from vmg_paper.experiments.table1 import HEADER, render, summarise
from vmg_paper.experiments.table1_methods import TABLE_METHODS as METHODS
from vmg_paper.experiments.table1_methods import TableMethod, hidden_layers

FIELDS = {
    *("experiment", "method", "dataset", "split", "seed", "rmse", "log_likelihood", "coverage_90"),
    *("interval_width_90", "crps", "seconds", "steps", "config", "version"),
}


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_the_command_earns_one_line_per_split_and_resumes(jobs, data_folder, tmp_path, capsys):
    out = tmp_path / "results.jsonl"
    command = ["reproduce", "table1", "--datasets", "yacht", "--methods", "pbp", "--out", str(out), "--jobs", jobs]
    assert run([*command, "--splits", "2"]) == 0
    first = read_lines(out)
    assert [(r["method"], r["dataset"], r["split"]) for r in first] == [("pbp", "yacht", 0), ("pbp", "yacht", 1)]
    assert all(set(r) == FIELDS for r in first)
    assert all(0.3 < r["rmse"] < 2 and 0 <= r["coverage_90"] <= 1 for r in first)
    capsys.readouterr()
    with out.open("a") as file:
        file.write('{"experiment": "table1", "meth')  # a run that was killed while it wrote
    assert run([*command, "--splits", "3"]) == 0
    found = read_lines(out)
    assert found[:2] == first, "what is there is not run again"
    assert [r["split"] for r in found] == [0, 1, 2]
    assert "| yacht | pbp | 3 |" in capsys.readouterr().out
    assert run(["reproduce", "table1", "--out", str(out), "--show"]) == 0
    assert "| yacht | pbp | 3 |" in capsys.readouterr().out


def test_methods_are_listed(capsys):
    assert run(["reproduce", "--list"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert listed == list(METHODS)
    assert {"table", "vmg", "mean-field", "pbp", "vmg-ensemble"} <= set(listed)


def test_unknown_names_are_refused(tmp_path, capsys):
    assert run(["reproduce", "table1", "--datasets", "nowhere", "--out", str(tmp_path / "r.jsonl")]) == 2
    assert "nowhere" in capsys.readouterr().err


def test_fits_see_training_rows_alone(data_folder, monkeypatch):
    """Every test row of the fitted split is garbage; the model is the same."""
    fit_splits = table1.fit_splits

    def spoiled(estimator, X, y, splits, **options):
        [(_, test)] = splits
        X, y = X.copy(), y.copy()
        X[test], y[test] = 1e6, -1e6
        return fit_splits(estimator, X, y, splits, **options)

    def make(table, seed):
        return VMGRegressor((3,), max_noise=0.1, max_iter=1, random_state=seed)

    monkeypatch.setattr(table1, "fit_splits", spoiled)
    monkeypatch.setitem(METHODS, "probe", TableMethod("probe", "", make))
    [record] = table1.execute(table1.Task("probe", "yacht", (0,), 0))
    table, (train, test) = load_table("yacht"), standard_splits("yacht")[0]
    alone = make("yacht", 0).fit(table.X[train], table.y[train])
    error = np.sqrt(np.mean((alone.predict(table.X[test]) - table.y[test]) ** 2))
    assert record["rmse"] == pytest.approx(error)


def test_every_method_makes_an_estimator_in_the_papers_architecture(data_folder):
    for name, method in METHODS.items():
        for table in ("yacht", "protein"):
            estimator = method.make(table, 3)
            if name != "table":  # whose size follows the rows
                assert tuple(np.atleast_1d(estimator.hidden_layer_sizes)) == hidden_layers(table), name
            assert estimator.random_state == 3, name


def test_the_record_says_what_every_method_is(data_folder):
    """As JSON; a baseline's own settings stand among the estimator's."""
    for name, method in METHODS.items():
        config = json.loads(json.dumps(table1.config(method.make("yacht", 0))))
        assert config["random_state"] == 0, name
    paper = table1.config(METHODS["vmg"].make("yacht", 0))
    assert (paper["baseline"], paper["n_pseudo"], paper["learning_rate_init"]) == ("PaperVMG", 5, 1e-3)
    assert paper["max_noise"] == pytest.approx(0.005**0.5)


# -- the summary ------------------------------------------------------------------------------------------------------


def line(split, rmse, log_likelihood):
    key = {"experiment": "table1", "method": "vmg", "dataset": "yacht", "split": split}
    scores = {"rmse": rmse, "log_likelihood": log_likelihood, "coverage_90": 0.9, "interval_width_90": 1.0}
    return {**key, **scores, "crps": 0.1, "seconds": 2.0}


def test_means_and_standard_errors():
    [row] = summarise([line(0, 0.5, -1.0), line(1, 0.7, -2.0)])
    assert row["splits"] == 2
    assert row["rmse"] == pytest.approx(0.6)
    assert row["rmse_error"] == pytest.approx(0.1)  # the standard deviation is √0.02, over √2
    assert row["log_likelihood_error"] == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("method", "rmse", "log_likelihood", "marks"),
    [
        ("vmg", 0.60, -0.50, ["0.71 +", "0.67 +", "0.56 −", "-1.30 +", "-0.47 −", "-0.46 −"]),
        ("vmg", 0.7149, -1.3049, ["0.71 +", "0.67 −", "0.56 −", "-1.30 +", "-0.47 −", "-0.46 −"]),  # equal as printed
        ("pbp", 1.01, -1.64, ["1.02 +", "0.67 −", "0.56 −", "-1.63 −", "-0.47 −", "-0.46 −"]),  # the paper's of PBP
    ],
)
def test_figures_of_others_are_marked_by_how_ours_compares(method, rmse, log_likelihood, marks):
    """Yacht: the paper's figure for the method, the best with one layer, and the best of all."""
    head, _, row = render(summarise([line(0, rmse, log_likelihood) | {"method": method}])).splitlines()
    assert head.count("|") == row.count("|") == len(HEADER) + 1
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[4:7] + cells[8:11] == marks


def test_the_best_of_all_is_no_worse_than_the_best_with_one_layer():
    assert all(table.keys() == PAPER_TABLE1.keys() for table in (BEST, BEST_ONE_LAYER, *PAPER_BASELINES.values()))
    for name, (rmse, log_likelihood) in BEST.items():
        assert rmse.mean <= BEST_ONE_LAYER[name][0].mean
        assert log_likelihood.mean >= BEST_ONE_LAYER[name][1].mean


def test_the_page_shows_what_the_results_file_holds():
    root = Path(__file__).parents[3]
    page = (root / "docs" / "table1.md").read_text(encoding="utf-8")
    summary = summarise(read_lines(root / "results" / "table1.jsonl"))
    assert {row["method"] for row in summary} <= set(METHODS)
    for row in render(summary).splitlines()[2:]:
        assert row in page

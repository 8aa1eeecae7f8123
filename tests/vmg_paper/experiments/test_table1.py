"""The runner of Table 1, on real data with the fastest of its methods."""

import json

import numpy as np
import pytest

from vmg.cli.app import run
from vmg.variational import VMGRegressor
from vmg_paper.data import load_table, standard_splits
from vmg_paper.experiments import table1
from vmg_paper.experiments.table1_methods import TABLE_METHODS as METHODS
from vmg_paper.experiments.table_method import TableMethod, hidden_layers

FIELDS = {
    *("experiment", "method", "dataset", "split", "seed", "rmse", "log_likelihood", "coverage_90"),
    *("interval_width_90", "crps", "seconds", "steps", "config", "version"),
}


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_the_command_earns_one_line_per_split_and_resumes(jobs, data_folder, tmp_path, capsys):
    out = tmp_path / "results.jsonl"
    command = ["reproduce", "table1", "--datasets", "yacht", "--methods", "pbp", "--out", str(out), "--jobs", jobs]
    assert run([*command, "--splits", "2"]) == 0
    first = lines(out)
    assert [(r["method"], r["dataset"], r["split"]) for r in first] == [("pbp", "yacht", 0), ("pbp", "yacht", 1)]
    assert all(set(r) == FIELDS for r in first)
    assert all(0.3 < r["rmse"] < 2 and 0 <= r["coverage_90"] <= 1 for r in first)
    capsys.readouterr()
    with out.open("a") as file:
        file.write('{"experiment": "table1", "meth')  # a run that was killed while it wrote
    assert run([*command, "--splits", "3"]) == 0
    assert lines(out)[:2] == first, "what is there is not run again"
    assert [r["split"] for r in lines(out)] == [0, 1, 2]
    assert "| yacht | pbp | 3 |" in capsys.readouterr().out
    assert run(["reproduce", "table1", "--out", str(out), "--show"]) == 0
    assert "| yacht | pbp | 3 |" in capsys.readouterr().out


def test_methods_are_listed(capsys):
    assert run(["reproduce", "--list"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert listed == list(METHODS)
    assert {"table", "vmg", "mean-field", "pbp", "hmc", "vmg-no-pseudo-data"} <= set(listed)


def test_unknown_names_are_refused(tmp_path, capsys):
    assert run(["reproduce", "table1", "--datasets", "nowhere", "--out", str(tmp_path / "r.jsonl")]) == 2
    assert "nowhere" in capsys.readouterr().err


def test_fits_see_training_rows_alone(data_folder, monkeypatch):
    """Every test row of the fitted split is garbage; the model is the same."""
    fitted = []

    def remember(estimator, X, y, splits, **options):
        [(train, test)] = splits
        X, y = X.copy(), y.copy()
        X[test], y[test] = 1e6, -1e6
        fitted.append(VMGRegressor((3,), max_noise=0.1, max_iter=1, random_state=0).fit(X[train], y[train]))
        return fitted

    monkeypatch.setitem(METHODS, "probe", TableMethod("probe", "", METHODS["vmg"].make, remember))
    [record] = table1.execute(table1.Task("probe", "yacht", (0,), 0), "1")
    table, (train, test) = load_table("yacht"), standard_splits("yacht")[0]
    alone = VMGRegressor((3,), max_noise=0.1, max_iter=1, random_state=0).fit(table.X[train], table.y[train])
    error = np.sqrt(np.mean((alone.predict(table.X[test]) - table.y[test]) ** 2))
    assert record["rmse"] == pytest.approx(error)


def test_every_method_makes_an_estimator_in_the_papers_architecture(data_folder):
    for name, method in METHODS.items():
        for table in ("yacht", "protein"):
            estimator = method.make(table, 3)
            if name != "table":  # whose size follows the rows
                assert tuple(np.atleast_1d(estimator.hidden_layer_sizes)) == hidden_layers(table), name
            assert estimator.random_state == 3, name


def test_ablations_differ_from_their_base_in_what_they_say(data_folder):
    base = METHODS["vmg-defaults"].make("yacht", 0)
    for name, change in {
        "vmg-no-pseudo-data": {"n_pseudo": 0},
        "vmg-zero-mean": {"zero_mean": True},
        "vmg-capped": {"n_pseudo": (6, 20)},  # yacht has six inputs
        "vmg-max-noise-0.2": {"max_noise": 0.2},
    }.items():
        changed = METHODS[name].make("yacht", 0).get_params()
        assert {key: value for key, value in changed.items() if value != base.get_params()[key]} == change
    for name, sampling in {"vmg-joint": "joint", "vmg-weights": "weights"}.items():
        network = METHODS[name].make("yacht", 0).set_params(max_iter=1)
        table = load_table("yacht")
        assert network.fit(table.X[:40], table.y[:40]).network_.layers[0].sampling == sampling


def test_the_record_says_what_every_method_is(data_folder):
    """As JSON; a baseline's own settings stand among the estimator's."""
    for name, method in METHODS.items():
        config = json.loads(json.dumps(table1.config(method.make("yacht", 0))))
        assert config["random_state"] == 0, name
    paper = table1.config(METHODS["vmg"].make("yacht", 0))
    assert (paper["baseline"], paper["n_pseudo"], paper["learning_rate_init"]) == ("PaperVMG", 5, 1e-3)
    assert paper["max_noise"] == pytest.approx(0.005**0.5)

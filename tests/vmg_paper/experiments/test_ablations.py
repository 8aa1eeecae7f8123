"""Ablations: each variant changes what it says, counts are those of real networks, the page is that of the results."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from tiny_digits import tiny_digits  # noqa: F401

from vmg.cli.app import run
from vmg.files import read_lines
from vmg_paper.cli.figures import RESULTS
from vmg_paper.data import load_table
from vmg_paper.experiments import ablations, table1
from vmg_paper.experiments.ablations import ABLATIONS, BASE, DATASETS, INPUTS

ROOT = Path(__file__).parents[3]


def test_every_variant_changes_what_it_says(data_folder):
    base = table1.config(ABLATIONS[BASE].make("yacht", 0))
    assert (base["n_pseudo"], base["max_noise"], base["prior"]) == (5, pytest.approx(0.005**0.5), "gamma")
    for name, change in {
        "no pseudo-data": {"n_pseudo": 0},
        "zero mean": {"layer": {"zero_mean": True}},
        "isotropic prior": {"prior": "isotropic"},
        "P < R": {"n_pseudo": (5, 5)},  # yacht has six inputs
        "P = R": {"n_pseudo": (7, 51)},
        "dense, no pseudo-data": {"n_pseudo": 0, "layer": ablations.DENSE},
    }.items():
        config = table1.config(ABLATIONS[name].make("yacht", 0))
        assert {key: value for key, value in config.items() if value != base[key]} == change, name


def test_variants_on_images_change_what_they_say():
    points, base = ablations.IMAGE_VARIANTS[BASE]
    for name, (changed_points, change) in {
        "no pseudo-data": (0, {}),
        "P = 50": (50, {}),
        "zero mean": (points, {"zero_mean": True}),
        "conditional KL": (points, {"kl": "conditional"}),
        "one α a layer": (points, {"pseudo_noise": "layer"}),
        "rank one": (points, ablations.RANK_ONE),
    }.items():
        own_points, method = ablations.IMAGE_VARIANTS[name]
        assert (own_points, method.options) == (changed_points, {**base.options, **change}), name


def test_inputs_are_those_of_the_tables(data_folder):
    assert {name: load_table(name).X.shape[1] for name in INPUTS if name != "year"} | {"year": 90} == INPUTS


def line(method, split, rmse, dataset="yacht"):
    return {"method": method, "dataset": dataset, "split": split, "rmse": rmse, "log_likelihood": -rmse}


def test_differences_are_taken_split_by_split():
    lines = [
        line(BASE, 0, 1.0),
        line(BASE, 1, 3.0),
        line("dense", 0, 1.5),
        line("dense", 1, 3.7),
        line("dense", 2, 9.0),
    ]
    assert ablations.differences(lines, "rmse")["dense", "yacht"] == (pytest.approx(0.6), pytest.approx(0.1))
    table = ablations.render(lines)
    assert "**+0.600 ± 0.100**" in table and "**-0.600 ± 0.100**" in table and "| 2.000 ± 1.000 |" in table


def test_the_command_resumes_and_writes_the_page(data_folder, tiny_digits, tmp_path, monkeypatch):  # noqa: F811
    (tiny_digits / "uci" / "yacht").mkdir(parents=True)  # beside the tiny images
    shutil.copy(Path(data_folder) / "uci" / "yacht" / "data.csv.gz", tiny_digits / "uci" / "yacht")
    images = {name: ablations.IMAGE_VARIANTS[name] for name in ("factorised", "no pseudo-data")}
    monkeypatch.setattr(ablations, "IMAGE_VARIANTS", images)
    monkeypatch.setattr(ablations, "IMAGE_SIZE", "1x8")
    monkeypatch.setattr(ablations, "DATASETS", ("yacht",))
    monkeypatch.setattr(ablations, "STEPS", 8)
    monkeypatch.setattr(ablations, "N_SPLITS", 2)
    few = {name: ABLATIONS[name] for name in (BASE, "P = 1")}
    monkeypatch.setattr(ablations, "ABLATIONS", few)
    monkeypatch.setitem(table1.METHODS, "ablations", few)
    out, page = tmp_path / "lines.jsonl", tmp_path / "page.md"
    page.write_text(f"words\n<!-- {RESULTS} -->\nold\n<!-- end of {RESULTS} -->\n")
    assert run(["reproduce", "ablations", "--out", str(out), "--write", str(page)]) == 0
    first = read_lines(out)
    assert [(r["experiment"], r["method"], r["split"]) for r in first] == [
        *(("ablations", name, split) for name in (BASE, "P = 1") for split in (0, 1)),
        *(("ablations", name, 0) for name in images),
    ]
    assert run(["reproduce", "ablations", "--out", str(out), "--write", str(page)]) == 0
    assert read_lines(out) == first
    assert page.read_text().startswith("words\n") and "old" not in page.read_text()
    assert ablations.render(first) in page.read_text()


def test_the_page_shows_what_the_results_hold():
    page = (ROOT / "docs" / "ablations.md").read_text(encoding="utf-8")
    lines = read_lines(ROOT / "results" / "ablations.jsonl")
    assert ablations.render(lines) in page, "run: vmg reproduce ablations --show --write docs/ablations.md"
    assert {line["dataset"] for line in lines} <= {*DATASETS, ablations.MNIST}
    assert all(np.isfinite(line["log_likelihood"]) for line in lines)

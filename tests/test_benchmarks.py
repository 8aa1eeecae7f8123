"""Every benchmark runs and prints numbers; how good they are is not for a test."""

import json
import math
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"

KEYS = {  # a few that readers of the JSON rely on
    "step": {"width", "variant", "ms", "plain_ms", "ratio", "kernels"},
    "predict": {"way", "ms", "reference", "reference_ms", "times", "goal"},
    "peers": {"width", "network", "ms", "ratio"},
    "scaling": {"part", "size", "network", "ms", "per", "memory_mb"},
    "fit_time": {"rows", "method", "seconds", "ratio", "rmse", "log_likelihood"},
    "replicas": {"splits", "steps", "together_s", "apart_s", "times", "goal"},
    "memory": {"width", "points", "plain_mb", "vmg_mb", "ratio", "added_ratio", "goal"},
}


@pytest.fixture
def run(run_script, tmp_path):
    def run(name, *options):
        return run_script(FOLDER / f"{name}.py", "--quick", "--threads", 1, *options, folder=tmp_path)[0]

    return run


@pytest.mark.parametrize("name", KEYS)
def test_a_benchmark_prints_rows_of_numbers(name, run, tmp_path):
    rows = json.loads(run(name, "--json"))
    assert rows
    for row in rows:
        assert KEYS[name] <= set(row)
        numbers = [value for value in row.values() if isinstance(value, float)]
        assert numbers and all(map(math.isfinite, numbers))
        times = [row[key] for key in ("ms", "ratio", "times", "together_s", "plain_mb", "seconds") if key in row]
        assert times and min(times) > 0
    if name == "scaling":
        written = {path.name for path in (tmp_path / "results").iterdir()}
        assert written == {"scaling_width.png", "scaling_points.png", "scaling_rows.png"}
    if name == "peers":
        assert {"nn.Linear", "vmg, P=50", "vmg, zero mean, P=50", "mean field in plain PyTorch"} <= {
            row["network"] for row in rows
        }


def test_peers_that_are_missing_are_named(run):
    *_, remark = run("peers").splitlines()
    for package in ("ivon-opt", "torchbnn", "bayesian-torch", "blitz-bayesian-pytorch"):
        assert package in remark  # with its version, or as left out


def test_scaling_prints_a_table_for_each_part(run):
    tables = run("scaling").strip().split("\n\n")
    assert [table.split(" | ")[0] for table in tables] == ["| width", "| pseudo-points", "| rows"]
    assert "slope from" in tables[0]


def test_without_json_a_table_is_printed(run):
    header, rule, *rows = run("step").splitlines()
    assert header.startswith("| layers | network |")
    assert set(rule) == {"|", "-"}
    assert len(rows) == 4 and "own loop" in rows[-1]


def test_bounds_go_on_where_they_were_and_write_their_page(run_script, tmp_path):
    page, out = tmp_path / "bounds.md", tmp_path / "bounds.jsonl"
    page.write_text("Kept.\n\n<!-- what follows is written by benchmarks/bounds.py -->\nold\n")
    sizes = []
    for _ in range(2):
        run_script(FOLDER / "bounds.py", "--quick", "--out", out, "--write", page)
        sizes.append(out.stat().st_size)
    assert sizes[0] == sizes[1] > 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert {row["part"] for row in rows} == {"linear", "tiny", "gap"}
    assert all(math.isfinite(row["objective"]) and math.isfinite(row["error"]) for row in rows)
    assert page.read_text().startswith("Kept.") and "old" not in page.read_text()
    assert page.read_text().count("| log evidence |") == 2

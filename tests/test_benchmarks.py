"""Every speed benchmark runs and prints numbers, and their page is written; how good the numbers are is not tested."""

import json
import math
import runpy
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as parquet
import pytest
import torch

FOLDER = Path(__file__).parents[1] / "benchmarks"

KEYS = {  # a few that readers of the JSON rely on
    "step": {"width", "variant", "ms", "plain_ms", "ratio", "kernels"},
    "predict": {"way", "ms", "reference", "reference_ms", "times", "goal"},
    "replicas": {"splits", "steps", "together_s", "apart_s", "times", "goal"},
    "memory": {"width", "points", "plain_mb", "vmg_mb", "ratio", "added_ratio", "goal"},
}


@pytest.fixture
def run(run_script, tmp_path):
    def run(name, *options):
        return run_script(FOLDER / f"{name}.py", "--quick", "--threads", 1, *options, folder=tmp_path)[0]

    return run


@pytest.mark.parametrize("name", KEYS)
def test_a_benchmark_prints_rows_of_numbers(name, run):
    rows = json.loads(run(name, "--json"))
    assert rows
    for row in rows:
        assert KEYS[name] <= set(row)
        numbers = [value for value in row.values() if isinstance(value, float)]
        assert numbers and all(map(math.isfinite, numbers))
        times = [row[key] for key in ("ms", "ratio", "times", "together_s", "plain_mb", "seconds") if key in row]
        assert times and min(times) > 0


def test_without_json_a_table_is_printed(run):
    header, rule, *rows = run("step").splitlines()
    assert header.startswith("| layers | network |")
    assert set(rule) == {"|", "-", " "}
    assert len(rows) == 5 and "own loop, nn.Sequential" in rows[-1]


def test_rows_of_large_data_are_made_in_pieces(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    import large_data

    monkeypatch.setattr(large_data, "PIECE", 100)
    large_data.generate(tmp_path / "rows.parquet", 250)
    rows = parquet.read_table(tmp_path / "rows.parquet").to_pandas()
    assert rows.shape == (250, 9) and (rows.dtypes == np.float32).all()
    residual = rows["y"] - np.sin(2 * rows["x0"]) - rows["x1"] * rows["x2"] - rows["x3"].abs()
    assert 0.25 < residual.std() < 0.35


# -- the page that run.py writes --------------------------------------------------------------------------------------


@pytest.fixture
def write_page(tmp_path, monkeypatch):
    """Runs benchmarks/run.py with scripts that print their name and options: exit code and page."""
    script = runpy.run_path(str(FOLDER / "run.py"))
    main = script["main"]
    scripts = tmp_path / "benchmarks"
    scripts.mkdir()
    monkeypatch.setitem(main.__globals__, "FOLDER", scripts)
    for name in script["BENCHMARKS"]:
        doc = "Time of ``this``.\n\nAs in :func:`vmg.training.train`,\non two lines.\n\n    python benchmarks/x.py\n"
        (scripts / f"{name}.py").write_text(f'"""{doc}"""\nimport sys\nprint("|", {name!r}, *sys.argv[1:], "|")\n')

    def write(*options):
        page = tmp_path / "page.md"
        monkeypatch.setattr(sys, "argv", ["run.py", *options, "--write", str(page)])
        return main(), page.read_text(encoding="utf-8") if page.exists() else ""

    return write, scripts, script["BENCHMARKS"]


def test_a_page_has_a_section_for_every_benchmark(write_page):
    write, _, benchmarks = write_page
    code, text = write("--quick")
    assert code == 0
    assert [line.removeprefix("## ") for line in text.splitlines() if line.startswith("## ")] == list(
        benchmarks.values()
    )
    assert "`python benchmarks/run.py --threads 2 --quick --write" in " ".join(text.split())
    assert "measures nothing" in text and f"PyTorch {torch.__version__}" in text
    step = text.split("## ")[1].strip().split("\n\n")[1:]
    assert step == [
        "`python benchmarks/step.py --threads 2 --quick`",
        "Time of `this`.",
        "As in `vmg.training.train`, on two lines.",
        "| step --threads 2 --quick |",
    ]
    assert all((FOLDER / f"{name}.py").is_file() for name in benchmarks)


def test_a_failure_is_on_the_page_and_the_rest_runs(write_page):
    write, scripts, _ = write_page
    (scripts / "step.py").write_text("raise SystemExit(3)")
    code, text = write("step", "predict")
    assert code == 1
    assert "It failed, and there are no numbers." in text and "| predict" in text


def test_an_unknown_benchmark_is_named(write_page, capsys):
    with pytest.raises(SystemExit, match="2"):
        write_page[0]("speed")
    assert "must be among step, predict" in capsys.readouterr().err

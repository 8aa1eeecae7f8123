"""``vmg bench``: which scripts run, what it says where there are none."""

import json
from pathlib import Path

import pytest
import torch

import vmg
from vmg.cli import app as commands
from vmg.cli import bench


@pytest.fixture
def scripts(tmp_path, monkeypatch):
    """A checkout whose benchmarks print their name and options."""
    folder = tmp_path / "benchmarks"
    folder.mkdir()
    (folder / "measuring.py").write_text("")
    for name in bench.BENCHMARKS:
        (folder / f"{name}.py").write_text(f"import sys, json\nprint(json.dumps([{name!r}, *sys.argv[1:]]))\n")
    monkeypatch.setattr(vmg, "__file__", str(tmp_path / "src" / "vmg" / "__init__.py"))
    return folder


def test_chosen_benchmarks_run_in_order(scripts, capfd):
    assert commands.run(["bench", "predict", "step", "--quick", "--threads", "1", "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert list(found) == ["predict", "step"]
    assert found["step"] == ["step", "--threads", "1", "--quick", "--json"]


def test_all_run_without_names(scripts, capfd):
    assert commands.run(["bench"]) == 0
    shown = capfd.readouterr().out
    for name, meaning in bench.BENCHMARKS.items():
        assert f"{name}: {meaning}" in shown
        assert f'["{name}", "--threads", "2"]' in shown


def test_an_unknown_benchmark_is_named(scripts, capfd):
    assert commands.run(["bench", "speed"]) == 2
    assert "must be among step, peers" in capfd.readouterr().err.replace("\n", " ")


def test_an_installed_package_has_none(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(vmg, "__file__", str(tmp_path / "lib" / "site-packages" / "vmg" / "__init__.py"))
    assert commands.run(["bench"]) == 2
    assert "needs a checkout" in capfd.readouterr().err


def test_a_failing_benchmark_fails_the_command(scripts, capfd):
    (scripts / "step.py").write_text("raise SystemExit(3)")
    assert commands.run(["bench", "step", "predict"]) == 1
    assert "step failed" in capfd.readouterr().err


# -- the page ---------------------------------------------------------------------------------------------------------


def test_a_page_has_a_section_for_every_benchmark(scripts, tmp_path, capfd):
    page = tmp_path / "RESULTS.md"
    assert commands.run(["bench", "--write", str(page), "--quick"]) == 0
    text = page.read_text(encoding="utf-8")
    titles = [line.removeprefix("## ") for line in text.splitlines() if line.startswith("## ")]
    assert titles == list(bench.BENCHMARKS.values())
    assert f"`vmg bench --threads 2 --quick --write {page}`" in " ".join(text.split())
    assert "`python benchmarks/step.py --threads 2 --quick`" in text
    assert f"`python benchmarks/scaling.py --threads 2 --quick --out {tmp_path}`" in text
    assert "measures nothing" in text
    assert f"PyTorch {torch.__version__}" in text
    assert '["step", "--threads", "2", "--quick"]' in text
    assert "--quick" in capfd.readouterr().out  # what is written is shown too


def test_a_page_says_what_the_benchmark_says_of_itself(scripts, tmp_path):
    doc = "Time of ``this``.\n\nAs in :func:`vmg.training.train`,\non two lines.\n\n    python benchmarks/step.py\n"
    (scripts / "step.py").write_text(f'"""{doc}"""\nprint("| a |")\n')
    assert commands.run(["bench", "step", "--write", str(tmp_path / "page.md")]) == 0
    *_, command, first, second, table = (tmp_path / "page.md").read_text().strip().split("\n\n")
    assert command == "`python benchmarks/step.py --threads 2`"
    assert first == "Time of `this`."
    assert second == "As in `vmg.training.train`, on two lines."
    assert table == "| a |"


def test_figures_stand_beside_the_page(scripts, tmp_path):
    drawing = "import sys, pathlib\npathlib.Path(sys.argv[-1], 'scaling_width.png').write_bytes(b'')\n"
    (scripts / "scaling.py").write_text(drawing)
    assert commands.run(["bench", "scaling", "--write", str(tmp_path / "page.md")]) == 0
    assert "](scaling_width.png)" in (tmp_path / "page.md").read_text()


def test_a_failure_is_on_the_page_and_the_rest_runs(scripts, tmp_path, capfd):
    (scripts / "step.py").write_text("raise SystemExit(3)")
    assert commands.run(["bench", "step", "predict", "--write", str(tmp_path / "page.md")]) == 1
    text = (tmp_path / "page.md").read_text()
    assert "It failed, and there are no numbers." in text
    assert '["predict"' in text
    assert "step failed" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"), [(["--json"], "without --json"), ([], "must be in a folder that exists")]
)
def test_a_page_that_cannot_be_is_refused(scripts, tmp_path, capfd, options, message):
    assert commands.run(["bench", "--write", str(tmp_path / "missing" / "page.md"), *options]) == 2
    assert message in " ".join(capfd.readouterr().err.split())


def test_a_real_benchmark_makes_a_page(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    page = tmp_path / "page.md"
    assert commands.run(["bench", "step", "--quick", "--threads", "1", "--write", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    assert "| layers | network | ms per step |" in text
    assert "All networks of a width take turns" in text
    assert "    python" not in text


def test_every_benchmark_is_there():
    folder = Path(__file__).parents[2] / "benchmarks"
    assert all((folder / f"{name}.py").is_file() for name in bench.BENCHMARKS)

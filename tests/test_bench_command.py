"""``vmg bench``: which scripts run, what it says where there are none."""

import json
from pathlib import Path

import pytest

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
    assert "must be among step, predict" in capfd.readouterr().err.replace("\n", " ")


def test_an_installed_package_has_none(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(vmg, "__file__", str(tmp_path / "lib" / "site-packages" / "vmg" / "__init__.py"))
    assert commands.run(["bench"]) == 2
    assert "needs a checkout" in capfd.readouterr().err


def test_a_failing_benchmark_fails_the_command(scripts, capfd):
    (scripts / "step.py").write_text("raise SystemExit(3)")
    assert commands.run(["bench", "step", "predict"]) == 1
    assert "step failed" in capfd.readouterr().err


def test_every_benchmark_is_there():
    folder = Path(__file__).parents[1] / "benchmarks"
    assert all((folder / f"{name}.py").is_file() for name in bench.BENCHMARKS)

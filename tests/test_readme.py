"""Every block of Python in the README runs, and its figures are those of the result files."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", README.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def test_there_are_blocks_to_run():
    assert len(BLOCKS) >= 2


@pytest.mark.parametrize("position", range(len(BLOCKS)))
def test_block_runs(position, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(compile(BLOCKS[position], f"README block {position}", "exec"), names)
    assert names


def check(page):
    command = [sys.executable, str(ROOT / "benchmarks" / "readme.py"), "--check", "--page", str(page)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_its_figures_are_those_of_the_result_files(tmp_path):
    assert check(README).returncode == 0
    untrue = tmp_path / "README.md"
    text = README.read_text(encoding="utf-8")
    figure = re.search(r"mean log loss \| (0\.\d+)", text)
    assert figure is not None
    untrue.write_text(text.replace(figure[1], "0.111"), encoding="utf-8")
    assert check(untrue).returncode == 1
    assert "0.111" in untrue.read_text(encoding="utf-8")  # a check changes nothing

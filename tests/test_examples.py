"""Every example runs and says something."""

from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))


def test_there_are_examples():
    assert len(EXAMPLES) >= 4


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_and_prints(path, run_script):
    printed, complaints = run_script(path)
    assert len(printed.splitlines()) >= 4
    assert complaints == ""

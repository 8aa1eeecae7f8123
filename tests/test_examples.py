"""Every example runs and says something, and those that draw draw something."""

from pathlib import Path

import matplotlib.pyplot as plt
import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))
DRAW = {path for path in EXAMPLES if "plt.show()" in path.read_text()}


def test_there_are_examples():
    assert len(EXAMPLES) >= 4
    assert DRAW


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_and_prints(path, run_script, monkeypatch):
    drawn = []
    monkeypatch.setattr(plt, "show", lambda: drawn.extend(plt.gcf().axes))
    printed, complaints = run_script(path)
    plt.close("all")
    assert len(printed.splitlines()) >= 4
    assert complaints == ""
    assert bool(drawn) == (path in DRAW)
    assert all(axes.has_data() for axes in drawn)

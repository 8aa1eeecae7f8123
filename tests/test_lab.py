"""Scripts of the laboratory start, and run where a tiny setting exists."""

import json
import math
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "lab"
HELPERS = ("benchmarks_path", "hard_tables", "scaling_figures")
SCRIPTS = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in HELPERS)
PAGE = (FOLDER / "README.md").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def _lab(monkeypatch):
    """The paths of a script; a second import of benchmarks_path adds none."""
    for folder in (FOLDER.parent / "benchmarks", FOLDER):
        monkeypatch.syspath_prepend(str(folder))


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_starts_and_the_page_names_it(name, run_script):
    with pytest.raises(SystemExit, match="0"):
        run_script(FOLDER / f"{name}.py", "--help")
    assert f"python lab/{name}.py" in PAGE


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("bounds", ["--quick", "--out", "bounds.jsonl"]),
        ("peers", ["--quick", "--threads", "1", "--json"]),
        ("scaling", ["--quick", "--threads", "1", "--json", "--out", "."]),
    ],
)
def test_a_script_measures_finite_numbers(name, options, run_script, tmp_path):
    printed = run_script(FOLDER / f"{name}.py", *options, folder=tmp_path)[0]
    lines = (tmp_path / "bounds.jsonl").read_text().splitlines() if name == "bounds" else []
    rows = [json.loads(line) for line in lines] or json.loads(printed)
    numbers = [value for row in rows for value in row.values() if isinstance(value, float)]
    assert numbers and all(map(math.isfinite, numbers))
    if name == "scaling":
        assert {path.suffix for path in tmp_path.iterdir()} == {".png"}


def test_one_process_does_not_talk_and_many_share_the_rows():
    from scaling_machines import BANDWIDTH, LATENCY, StepCost

    cost = StepCost(0.01, 1e-4, 10**6)
    assert cost.seconds(400, 1) == (0.05, 0.0)
    work, talk = cost.seconds(200, 2)
    assert work == pytest.approx(0.03)  # the fixed part of a step is not shared
    assert talk == pytest.approx(4e6 / BANDWIDTH + 2 * LATENCY)  # 2 (W - 1)/W = 1


def test_the_parts_of_the_cost_model_are_recovered_from_steps_that_follow_it():
    import processes

    measured = {
        "one": {"ms": 20.0, "rows": 100, "parameters": 500_000},
        "one, half the rows": {"ms": 14.0, "rows": 50},
        "one, that sleeps": {"ms": 23.0, "rows": 100},
        "two, apart": {"ms": 26.0, "rows": 100},
        "two, batch each": {"copies": 2e-3, "bandwidth": 1e9, "latency": 1e-4, "messages": 1},
    }
    cost = processes.cost(measured, "two, batch each")
    assert (cost.fixed, cost.per_row, cost.contention) == pytest.approx((8e-3, 1.2e-4, 1.3))
    assert sum(cost.seconds(100, 2)) == pytest.approx(26e-3 + 2e-3 + 3e-3 + 2e-3 + 2e-4)

"""A short slice of the campaign of ``make fuzz``, always the same."""

import random
import signal
import subprocess
import sys
from pathlib import Path

import kills
import pytest
import run
from findings import Finding

FOLDER = Path(__file__).parent

SLICE = {"mutated": 150, "forged": 150, "table": 25, "configuration": 60}


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("kind", SLICE)
def test_a_slice_of_the_campaign_finds_nothing(kind, tmp_path):
    for number in range(SLICE[kind]):
        assert run.run_case(kind, 0, number, tmp_path)


@pytest.mark.parametrize(
    "name", [name for name in kills.SITUATIONS if name not in ("checkpoints", "interrupt from the start")]
)
def test_kills_at_one_moment_each(name, tmp_path):
    kills.SITUATIONS[name](random.Random(0), tmp_path)


def test_a_campaign_goes_on_where_it_was_stopped(tmp_path, monkeypatch, capsys):
    seen = []

    def case(rng, folder):
        seen.append(rng.random())
        if len(seen) == 3:
            raise KeyboardInterrupt
        if len(seen) == 5:
            raise TypeError("of a kind that nobody expects")
        return "fine"

    for kind in ("mutated", "forged"):
        monkeypatch.setitem(run.CASES, kind, case)

    def findings():
        return [one for kind in run.campaign(1, {"mutated": 6, "forged": 3}, tmp_path, 60) for one in kind["findings"]]

    with pytest.raises(KeyboardInterrupt):
        findings()
    assert len(findings()) == 2  # the one that ended the process, and the error
    assert len(seen) == 9 and "TypeError: of a kind that nobody expects" in capsys.readouterr().out
    assert len(findings()) == 2 and len(seen) == 9


def test_all_kinds_go_on_together(tmp_path, monkeypatch):
    """A campaign that is stopped early has the same share of every kind."""
    for kind in run.CASES:
        monkeypatch.setitem(run.CASES, kind, lambda rng, folder: "fine")
    clock = iter(range(10**6))
    monkeypatch.setattr(run.time, "monotonic", lambda: next(clock))
    found = run.campaign(1, {"mutated": 1000, "kill": 10, "table": 100}, tmp_path, 556)
    assert {record["kind"]: record["cases"] for record in found} == {"mutated": 500, "kill": 5, "table": 50}


def test_a_case_that_heeds_no_signal_ends_its_process(tmp_path):
    program = f"""
import pathlib, sys
sys.path[:0] = {[str(FOLDER), str(FOLDER.parent)]!r}
import run, victims
run.LAST_RESORT = 1.0
run.CASES["table"] = lambda rng, folder: victims.compute()
run.run_case("table", 0, 0, pathlib.Path({str(tmp_path)!r}))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 1 and "Timeout" in done.stderr


def test_a_campaign_starts_again_after_its_process_was_ended(monkeypatch):
    codes, seen = iter([1, -9, 134, run.FOUND]), []

    def worker(command, **_):
        seen.append(command[-1])
        return subprocess.CompletedProcess(command, next(codes))

    monkeypatch.setattr(run.subprocess, "run", worker)
    assert run.supervise(["--seed", "3"], 600.0) == 1
    assert len(seen) == 4 and all(float(seconds) <= 600 for seconds in seen)


@pytest.mark.parametrize(
    ("work", "seconds", "said"),
    [
        ("hang", (1, 20), "waited"),
        ("compute", (60, 1), "computed"),
        ("hang_in_a_child", (1, 20), "waited"),
        ("leave_a_child", (60, 20), "left processes behind"),
    ],
)
def test_limits_hold_for_a_victim_and_for_what_it_starts(tmp_path, monkeypatch, work, seconds, said):
    with pytest.raises(Finding, match=said):
        kills.victims().start(work, folder=tmp_path, seconds=seconds).wait()
    left = [int(pid) for pid in (tmp_path / "child").read_text().split()] if "child" in work else []
    assert not any(Path(f"/proc/{pid}").exists() and _state(pid) not in "ZX" for pid in left)


def test_a_victim_hears_a_signal_from_the_first_moment(tmp_path):
    """On a busy machine it was sent before the victim listened, which then computed until its limit."""
    for _ in range(2):
        victim = kills.victims().start("hang", folder=tmp_path, seconds=(60, 20))
        assert victim.end_after(0, 0.0, signal.SIGINT) == 99 and "KeyboardInterrupt" in victim.said()


def _state(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_child_of_a_victim_may_take_no_more_memory(tmp_path):
    assert kills.victims().start("allocate_in_a_child", folder=tmp_path).wait() == 7

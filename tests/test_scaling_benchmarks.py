"""The arithmetic behind docs/scaling.md, and the rows that its measurements are made on."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as parquet
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import large_data
import processes
import scaling_machines

COST = scaling_machines.StepCost(0.01, 1e-4, 10**6)


def test_one_process_does_not_talk_and_many_share_the_rows():
    assert COST.seconds(400, 1) == (0.05, 0.0)
    work, talk = COST.seconds(200, 2)
    assert work == pytest.approx(0.03)  # what does not depend on rows is not shared
    assert talk == pytest.approx(4e6 / scaling_machines.BANDWIDTH + 2 * scaling_machines.LATENCY)  # 2 (W - 1)/W = 1


def test_processes_on_one_machine_are_in_each_others_way():
    near = replace(COST, contention=1.5, copies=0.001, waking=0.001, bandwidth=1e9, latency=1e-3, messages=2)
    assert near.seconds(200, 1) == COST.seconds(200, 1)  # one alone is in nobody's way
    assert near.seconds(200, 2) == pytest.approx((1.5 * 0.03 + 0.002, 0.004 + 2 * 2 * 1e-3))


def test_the_parts_of_the_model_are_found_again():
    """From steps that follow the model exactly."""
    found = {
        "one": {"ms": 20.0, "rows": 100, "parameters": 500_000},
        "one, half the rows": {"ms": 14.0, "rows": 50},
        "one, that sleeps": {"ms": 23.0, "rows": 100},
        "two, apart": {"ms": 26.0, "rows": 100},
        "two, batch each": {"copies": 2e-3, "bandwidth": 1e9, "latency": 1e-4, "messages": 1},
    }
    cost = processes.cost(found, "two, batch each")
    assert (cost.fixed, cost.per_row, cost.contention) == pytest.approx((8e-3, 1.2e-4, 1.3))
    assert sum(cost.seconds(100, 2)) == pytest.approx(26e-3 + 2e-3 + 3e-3 + 2e-3 + 2e-4)


def test_a_fit_on_more_machines_is_bound_by_the_sample():
    cost = {"first_pass_us": 10.0, "second_pass_us": 40.0, "step_ms": 20.0}
    few, many, endless = (scaling_machines.fit_seconds(cost, machines) for machines in (8, 64, 10**6))
    assert few == pytest.approx(16 / 6 + 50e-6 * 1e9 / (8 * 16), rel=0.02)  # six members, one for a process
    assert endless > 16 / 6 and few > many > endless
    assert [scaling_machines.sample_seconds(cost, n) for n in (1, 2, 4)] == pytest.approx([16, 8, 16 / 3], rel=0.05)


def test_waiting_for_the_slowest_costs_more_with_more_processes_and_less_with_fewer_meetings():
    rng = np.random.default_rng(0)
    found = [scaling_machines.stragglers(processes, rng, steps=1000) for processes in (2, 64)]
    assert found[1]["every step"] > found[0]["every step"] > 1
    assert found[1]["every pass"] < found[1]["every step"]
    assert found[1]["every step, one machine at half speed"] > 1.9


def test_a_lost_process_costs_half_the_time_between_files():
    rng = np.random.default_rng(0)
    restart = 2 / 60
    assert scaling_machines.lost_process(5.0, 64, None, rng) == pytest.approx(7.5 + restart, rel=0.02)
    assert scaling_machines.lost_process(5.0, 64, 1.0, rng) == pytest.approx(5.5 + restart, rel=0.02)


def test_rows_are_made_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(large_data, "PIECE", 100)
    large_data.generate(tmp_path / "rows.parquet", 250)
    found = parquet.read_table(tmp_path / "rows.parquet").to_pandas()
    assert found.shape == (250, 9) and (found.dtypes == np.float32).all()
    residual = found["y"] - np.sin(2 * found["x0"]) - found["x1"] * found["x2"] - found["x3"].abs()
    assert 0.25 < residual.std() < 0.35

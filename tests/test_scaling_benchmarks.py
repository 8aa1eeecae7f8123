"""The arithmetic behind docs/scaling.md, and the rows that its measurements are made on."""

import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as parquet
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import large_data
import processes
import scaling_machines


def test_one_process_does_not_talk_and_many_share_the_work():
    assert scaling_machines.step_seconds(0.5, 10**6, 1) == (0.5, 0.0)
    work, talk = scaling_machines.step_seconds(0.5, 10**6, 2)
    assert work == 0.25
    assert talk == pytest.approx(4e6 / scaling_machines.BANDWIDTH + 2 * scaling_machines.LATENCY)  # 2 (W - 1)/W = 1


def test_the_model_of_two_processes_is_that_of_the_page():
    one = {"ms": 20.0, "rows": 100, "parameters": 500_000}
    assert processes.predict(one, {"rows": 100}, 1) == {
        "predicted_ms": 20.0, "predicted_talk_ms": 0.0, "predicted_bytes": 0
    }  # fmt: skip
    link = {"bandwidth": 1e9, "latency": 1e-3}  # 2(W - 1)/W · 4P bytes are 2 MB, and two messages 2 ms
    each, shared = (processes.predict(one, {"rows": rows, **link}, 2) for rows in (200, 100))
    assert each == pytest.approx({"predicted_ms": 24.0, "predicted_talk_ms": 4.0, "predicted_bytes": 2e6})
    assert shared == pytest.approx({"predicted_ms": 14.0, "predicted_talk_ms": 4.0, "predicted_bytes": 2e6})


def test_a_fit_on_more_machines_is_bound_by_the_sample():
    cost = {"first_pass_us": 10.0, "second_pass_us": 40.0, "step_ms": 20.0}
    few, many, endless = (scaling_machines.fit_seconds(cost, machines) for machines in (8, 64, 10**6))
    assert few == pytest.approx(16 + 50e-6 * 1e9 / (8 * 16), rel=0.02)
    assert endless == pytest.approx(16, rel=0.02) and few > many > endless


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

"""Streamed fits by several processes, which share rows and end with one model."""

import pytest
import torch
from parquet_parts import write_parts

from vmg.scale import fit_dataset

FAST = {"n_members": 4, "hidden_layer_sizes": (8,), "max_iter": 20, "random_state": 0}


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parts")
    write_parts(folder / "in", [300, 200, 250, 150, 100, 50])
    return folder / "in"


def equal(first, second, *, rtol=0.0):
    for name, value in first.items():
        torch.testing.assert_close(torch.as_tensor(second[name]), torch.as_tensor(value), rtol=rtol, atol=rtol)


def train(rank, folder, target, options):
    """Fit; what members hold at the end."""
    torch.set_num_threads(1)
    model = fit_dataset(folder, target, exclude=["key"], sample_rows=400, options=options)
    return {name: value.numpy() for name, value in model.estimator.ensemble_.members.state_dict().items()}


@pytest.mark.parametrize("target", ["y", "kind"])
def test_processes_end_with_the_model_of_one(pair, parts, target):
    alone, (first, second) = train(0, parts, target, FAST), pair.run(train, parts, target, FAST)
    equal(first, second)
    equal({name: value for name, value in alone.items() if "head" not in name}, first)


def test_processes_without_a_seed_share_one(pair, parts):
    first, second = pair.run(train, parts, "y", {**FAST, "random_state": None})
    equal(first, second)


def stop_early(rank, folder):
    def stop(progress):
        return rank == 0 and progress.step >= 10

    model = fit_dataset(folder, "y", exclude=["key"], options={**FAST, "max_iter": 200}, callbacks=[stop])
    return model.estimator.history_.last.step


def test_a_callback_of_the_first_process_stops_the_fit_of_all(pair, parts):
    first, second = pair.run(stop_early, parts)
    assert first == second < 60  # of 200 and the last ones

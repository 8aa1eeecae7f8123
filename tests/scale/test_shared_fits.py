"""Streamed fits by several processes, which share rows and members."""

import sys
from pathlib import Path

import pytest
import torch
from parquet_parts import write_parts

sys.path.insert(0, str(Path(__file__).parents[1] / "training"))

from gloo import Pair

from vmg.fit.gaussian import RegressionMembers
from vmg.fit.trainer import MemberRun, MemberShard, members_shared
from vmg.scale import fit_dataset

FAST = {"n_members": 4, "hidden_layer_sizes": (8,), "max_iter": 20, "random_state": 0}


@pytest.fixture(scope="module")
def pair():
    processes = Pair()
    yield processes
    processes.close()


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parts")
    write_parts(folder / "in", [300, 200, 250, 150, 100, 50])
    return folder / "in"


def equal(first, second, *, rtol=0.0):
    for name, value in first.items():
        torch.testing.assert_close(torch.as_tensor(second[name]), torch.as_tensor(value), rtol=rtol, atol=rtol)


def train(rank, folder, target, options):
    """Fit; what members hold at the end, and how many this process has trained in each of its trainings."""
    torch.set_num_threads(1)
    trained, first = [], MemberRun.__init__

    def noted(self, members, *rest):
        trained.append(members[0].features.n_members)
        first(self, members, *rest)

    MemberRun.__init__ = noted
    try:
        model = fit_dataset(folder, target, exclude=["key"], sample_rows=400, options=options)
    finally:
        MemberRun.__init__ = first
    members = model.estimator.ensemble_.members
    return {name: value.numpy() for name, value in members.state_dict().items()}, trained


@pytest.mark.parametrize("target", ["y", "kind"])
def test_processes_train_members_of_their_own_and_end_with_all(pair, parts, target):
    alone, trained = train(0, parts, target, FAST)
    (first, first_trained), (second, second_trained) = pair.run(train, parts, target, FAST)
    assert trained == [4] * len(trained) and first_trained == second_trained == [2] * len(trained)
    equal(first, second)
    assert all(len(value) == 4 for value in first.values())
    equal({name: value for name, value in alone.items() if "head" not in name}, first, rtol=1e-3)  # up to rounding


def test_more_processes_than_members_and_no_seed(pair, parts):
    options = {**FAST, "n_members": 1, "random_state": None}
    (first, first_trained), (second, second_trained) = pair.run(train, parts, "y", options)
    assert set(first_trained[-1:] + second_trained[-1:]) == {1}
    equal(first, second)


def stop_early(rank, folder):
    def stop(progress):
        return rank == 1 and progress.step >= 10

    model = fit_dataset(folder, "y", exclude=["key"], options={**FAST, "max_iter": 200}, callbacks=[stop])
    return model.estimator.history_.last.step


def test_a_callback_of_one_process_stops_all(pair, parts):
    first, second = pair.run(stop_early, parts)
    assert first == second < 60  # of 200 and the last ones


def shared_or_not(rank):
    with members_shared():
        inside = MemberShard(5)
    return MemberShard(5).alone, inside.alone, inside.own


def test_members_are_shared_only_where_that_is_asked_for(pair):
    """Processes of a group may fit models that have nothing to do with each other."""
    assert pair.run(shared_or_not) == [(True, False, slice(0, 2)), (True, False, slice(2, 5))]


def test_a_part_of_members_has_their_activations():
    members = RegressionMembers(3, (4,), 1, ("relu", "tanh"), 5)
    x = torch.randn(6, 3)
    for own in (slice(0, 2), slice(1, 5), slice(4, 5)):
        part = members.part(own)
        torch.testing.assert_close(part.features(x), members.features(x)[own])
        assert {name: len(value) for name, value in part.state_dict().items()} == dict.fromkeys(
            members.state_dict(), own.stop - own.start
        )

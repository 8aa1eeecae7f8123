"""Messages between processes: sums, rows and values come to all, and no message is a pickle."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent / "training"))

from gloo import Pair

from vmg import processes

VALUES = [
    None,
    True,
    3,
    0.1,
    -math.inf,
    "ä",
    b"\x00\xff",
    b"",
    [1, [2.5, "b"]],
    {"a": {"b": []}},
    ["list", {"list": 1}],
]
ARRAYS = [np.arange(6).reshape(2, 3), np.array(2.5), np.zeros((0, 4)), np.array(["a", "bcd"]), np.array([True, False])]


@pytest.fixture(scope="module")
def pair():
    both = Pair()
    yield both
    both.close()


def _share(rank):
    tensors, one = [torch.full((2, 2), float(rank + 1)), torch.tensor([10.0 * rank])], torch.tensor([1.0, rank])
    processes.add_up_(tensors)
    processes.add_up_([one])
    first = torch.tensor([5.0 + rank])
    processes.send_([first])
    sums = [t.tolist() for t in (*tensors, one, first)]
    low = processes.smallest(np.array([1.0 - rank, 5.0 + rank])).tolist()
    answers = processes.any_true(rank == 1), processes.any_true(False)
    return sums, low, answers, processes.gather(rank), processes.send(f"from {rank}", source=1)


def test_sums_and_values_are_shared(pair):
    first, second = pair.run(_share)
    sums = [[[3.0, 3.0], [3.0, 3.0]], [10.0], [2.0, 1.0], [5.0]]
    assert first == second == (sums, [0.0, 5.0], (True, False), [0, 1], "from 1")


def _rows(rank):
    rows = torch.arange(2.0 * (rank + 1)).reshape(1, rank + 1, 2) + 10 * rank
    known, counted = processes.gather_rows(rows, -2, sizes=[1, 2]), processes.gather_rows(rows[0])
    return known.tolist(), counted.tolist()


def test_rows_of_different_numbers_are_gathered(pair):
    expected = [[0.0, 1.0], [10.0, 11.0], [12.0, 13.0]]
    assert pair.run(_rows) == [([expected], expected)] * 2


def _values(rank):
    values, arrays = processes.gather([*VALUES, rank]), processes.send([*ARRAYS, torch.ones(2, dtype=torch.int32)])
    return values, [(type(array).__name__, str(array.dtype), array.tolist()) for array in arrays]


def test_values_come_as_they_were_sent(pair):
    arrays = [("ndarray", str(array.dtype), array.tolist()) for array in ARRAYS]
    expected = [[*VALUES, 0], [*VALUES, 1]], [*arrays, ("Tensor", "torch.int32", [1, 1])]
    assert pair.run(_values) == [expected, expected]


class Hostile:
    def __reduce__(self):
        return print, ("run",)


def test_objects_are_refused_before_anything_is_sent(pair):
    first, second = pair.run(_refuse)
    assert first == second
    assert "must be of numbers" in first[0]
    assert "must be of numbers" in first[1]
    assert "Object arrays cannot be saved" in first[2]


def _refuse(rank):
    refusals = []
    for value in (Hostile(), {1: 2}, np.array([Hostile()])):
        with pytest.raises((TypeError, ValueError)) as caught:
            processes.gather(value)
        refusals.append(str(caught.value))
    return refusals


def test_alone_there_is_nothing_to_do():
    value = Hostile()
    assert processes.rank_and_size() == (0, 1)
    assert processes.is_first()
    assert not processes.in_group()
    assert processes.gather(value) == [value]
    assert processes.send(value) is value
    rows = torch.ones(2, 3)
    assert processes.gather_rows(rows) is rows

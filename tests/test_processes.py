"""Messages between processes: sums, rows and values come to all, and no message is a pickle."""

import math

import pytest
import torch

from vmg import processes

VALUES = [None, True, 3, 0.1, -math.inf, "ä", [1, [2.5, "b"]], {"a": {"b": []}}]


def _share(rank):
    tensors, one = [torch.full((2, 2), float(rank + 1)), torch.tensor([10.0 * rank])], torch.tensor([1.0, rank])
    processes.add_up_(tensors)
    processes.add_up_([one])
    first = torch.tensor([5.0 + rank])
    processes.send_([first])
    sums = [t.tolist() for t in (*tensors, one, first)]
    return (
        sums,
        processes.gather([*VALUES, rank]),
        processes.gather_bytes(bytes(rank)),
        processes.send_bytes(b"%d" % rank),
    )


def test_sums_and_values_are_shared(pair):
    first, second = pair.run(_share)
    sums = [[[3.0, 3.0], [3.0, 3.0]], [10.0], [2.0, 1.0], [5.0]]
    assert first == second == (sums, [[*VALUES, 0], [*VALUES, 1]], [b"", b"\x00"], b"0")


def _rows(rank):
    rows = torch.arange(2.0 * (rank + 1)).reshape(1, rank + 1, 2) + 10 * rank
    return processes.gather_rows(rows, -2).tolist(), processes.gather_rows(rows[0]).tolist()


def test_rows_of_different_numbers_are_gathered(pair):
    expected = [[0.0, 1.0], [10.0, 11.0], [12.0, 13.0]]
    assert pair.run(_rows) == [([expected], expected)] * 2


class Hostile:
    def __reduce__(self):
        return print, ("run",)


def _refuse(rank):
    with pytest.raises(TypeError) as caught:
        processes.gather([Hostile()])
    return str(caught.value)


def test_objects_are_refused_before_anything_is_sent(pair):
    assert pair.run(_refuse) == ["Object of type Hostile is not JSON serializable"] * 2


def test_alone_there_is_nothing_to_do():
    value = Hostile()
    assert processes.rank_and_size() == (0, 1)
    assert processes.is_first()
    assert not processes.in_group()
    assert processes.gather(value) == [value]
    assert processes.gather_bytes(b"a") == [b"a"] and processes.send_bytes(b"a") == b"a"
    rows = torch.ones(2, 3)
    assert processes.gather_rows(rows) is rows

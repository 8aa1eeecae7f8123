import pytest
import torch
from regression_rows import seeded

from vmg.training import Minibatches


@pytest.mark.parametrize("batch_shape", [(), (1,), (3,), (2, 2)])
def test_each_epoch_visits_every_row_once(batch_shape):
    batches = Minibatches(12, 4, batch_shape, seeded())
    epochs = []
    for _ in range(3):
        epoch = torch.cat([next(batches) for _ in range(3)], -1)
        assert epoch.shape == (*batch_shape, 12)
        assert (epoch.sort(-1).values == torch.arange(12)).all()
        epochs.append(epoch)
    assert not torch.equal(epochs[0], epochs[1])


def test_replicas_have_permutations_of_their_own():
    index = next(Minibatches(50, 50, (4,), seeded()))
    assert len({tuple(row.tolist()) for row in index}) == 4


def test_left_over_rows_come_in_later_epochs():
    batches = Minibatches(10, 4, generator=seeded())
    drawn = [next(batches) for _ in range(20)]
    assert all(batch.shape == (4,) for batch in drawn)
    assert all(torch.cat(pair).unique().numel() == 8 for pair in zip(drawn[::2], drawn[1::2], strict=True))
    assert torch.cat(drawn).unique().numel() == 10


def test_each_replica_draws_from_its_own_rows():
    n_rows = torch.tensor([4, 7, 12])
    batches = Minibatches(n_rows, 2, (3,), seeded())
    drawn = torch.cat([next(batches) for _ in range(100)], -1)
    for k, n in enumerate(n_rows.tolist()):
        assert drawn[k].unique().tolist() == list(range(n))
    assert all(len(set(pair)) == 2 for row in drawn.reshape(3, 100, 2).tolist() for pair in row)


def test_a_batch_is_no_larger_than_the_smallest_replica():
    assert next(Minibatches(5, 32, (), seeded())).sort().values.tolist() == [0, 1, 2, 3, 4]
    assert next(Minibatches(torch.tensor([3, 9]), 32, (2,), seeded())).shape == (2, 3)


def test_no_rows():
    with pytest.raises(ValueError, match="at least one row"):
        next(Minibatches(torch.tensor([3, 0]), 2, (2,)))

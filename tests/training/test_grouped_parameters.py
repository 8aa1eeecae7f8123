import copy

import pytest
import torch
from torch import nn

from vmg.training.grouped_parameters import SMALL, GroupedParameters


def parameters(*shapes):
    return [nn.Parameter(torch.randn(*shape, dtype=torch.float64)) for shape in shapes]


SHAPES = ((2, 3), (4,), (SMALL + 1,), (1, 1, 5), (SMALL,))


def loss(values):
    return sum((k + 1) * (v**3).sum() for k, v in enumerate(values))


def test_small_parameters_become_one_vector():
    values = parameters(*SHAPES)
    before = [v.detach().clone() for v in values]
    grouped = GroupedParameters(values)
    large, vector = grouped.tensors
    assert large is values[2]
    torch.testing.assert_close(vector.detach(), torch.cat([before[k].reshape(-1) for k in (0, 1, 3, 4)]))
    assert all(torch.equal(a, b) for a, b in zip(values, before, strict=True)), "wrapping changes no value"


def test_small_parameters_are_views():
    values = parameters(*SHAPES)
    grouped = GroupedParameters(values)
    with torch.no_grad():
        grouped.tensors[-1].fill_(2.0)
    assert all((values[k] == 2).all() for k in (0, 1, 3, 4))
    assert not (values[2] == 2).any()
    with torch.no_grad():
        values[1].fill_(3.0)
    assert (grouped.tensors[-1][6:10] == 3).all()


def test_gradients_arrive_in_the_vector():
    values = parameters(*SHAPES)
    expected = torch.autograd.grad(loss(values), values)
    grouped = GroupedParameters(values)
    loss(values).backward()
    torch.testing.assert_close(grouped.tensors[0].grad, expected[2])
    torch.testing.assert_close(grouped.tensors[1].grad, torch.cat([expected[k].reshape(-1) for k in (0, 1, 3, 4)]))
    grouped.zero_grad()
    assert not grouped.tensors[1].grad.any()
    assert grouped.tensors[0].grad is None
    loss(values).backward()  # a second step sees its own gradient alone
    torch.testing.assert_close(values[0].grad, expected[0])
    torch.testing.assert_close(grouped.tensors[1].grad[:6].view(2, 3), expected[0])


def test_an_optimiser_takes_the_same_steps():
    plain = parameters(*SHAPES)
    same = copy.deepcopy(plain)
    grouped = GroupedParameters(same)
    optimisers = torch.optim.Adam(plain, lr=0.1), torch.optim.Adam(grouped.tensors, lr=0.1)
    for _ in range(3):
        optimisers[0].zero_grad()
        grouped.zero_grad()
        for values, optimiser in zip((plain, same), optimisers, strict=True):
            loss(values).backward()
            optimiser.step()
    for a, b in zip(plain, same, strict=True):
        torch.testing.assert_close(a, b)


def test_snapshot_and_restore():
    values = parameters(*SHAPES)
    grouped = GroupedParameters(values)
    before, kept = [v.detach().clone() for v in values], grouped.snapshot()
    with torch.no_grad():
        for v in values:
            v.add_(1)
    assert not any(torch.equal(a, b) for a, b in zip(values, before, strict=True)), "a snapshot is a copy"
    grouped.restore(kept)
    assert all(torch.equal(a, b) for a, b in zip(values, before, strict=True))
    assert values[0].data_ptr() == grouped.tensors[1].data_ptr(), "and the parameters are still views"


def test_restoring_something_else():
    grouped = GroupedParameters(parameters(*SHAPES))
    with pytest.raises(ValueError, match="zip"):
        grouped.restore(grouped.snapshot()[:1])


def test_release():
    values = parameters(*SHAPES)
    identities, before = [id(v) for v in values], [v.detach().clone() for v in values]
    grouped = GroupedParameters(values)
    loss(values).backward()
    grouped.release()
    assert [id(v) for v in values] == identities
    assert all(torch.equal(a, b) for a, b in zip(values, before, strict=True))
    assert all(v.grad is None for v in values)
    assert all(v.untyped_storage().nbytes() == v.numel() * v.element_size() for v in values)
    with torch.no_grad():
        grouped.tensors[-1].fill_(0.0)
    assert all(torch.equal(a, b) for a, b in zip(values, before, strict=True)), "no longer views"


def test_frozen_parameters_stay_out():
    frozen, free = parameters((3,), (2,))
    frozen.requires_grad_(False)
    grouped = GroupedParameters([frozen, free])
    assert [t.shape for t in grouped.tensors] == [(2,)]
    assert frozen.untyped_storage().nbytes() == 3 * 8


@pytest.mark.parametrize("shapes", [(), ((SMALL + 1,),)])
def test_nothing_small(shapes):
    values = parameters(*shapes)
    grouped = GroupedParameters(values)
    assert len(grouped.tensors) == len(values)
    assert all(a is b for a, b in zip(grouped.tensors, values, strict=True))
    grouped.restore(grouped.snapshot())
    grouped.zero_grad()
    grouped.release()
    assert all(v.grad is None for v in values)


def test_values_are_kept_in_the_same_place():
    grouped, kept = GroupedParameters(parameters(*SHAPES)), []
    grouped.copy_to(kept)
    places = [t.data_ptr() for t in kept]
    with torch.no_grad():
        grouped.tensors[0].add_(1.0)
    assert not torch.equal(kept[0], grouped.tensors[0])
    grouped.copy_to(kept)
    assert all(torch.equal(a, b) for a, b in zip(kept, grouped.tensors, strict=True))
    assert [t.data_ptr() for t in kept] == places

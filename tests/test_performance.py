"""What a training step costs, counted: operations of PyTorch, bytes of new tensors, bytes of workspace.

Counts do not depend on the machine's mood as seconds do. The bounds are a little above today's numbers: a change that
passes one of them should be worth it, and then moves the bound.
"""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from vmg.fused import library
from vmg.likelihoods import CategoricalLikelihood
from vmg.nn import MLP
from vmg.objective import Objective
from vmg.training.loop import differentiate
from vmg.training.rows import Batch

INPUTS, WIDTH, CLASSES, BATCH, POINTS = 784, 150, 10, 100, 50  # the paper's MNIST network [LW16, §4.2]
needs_kernels = pytest.mark.skipif(not library.available(), reason="the kernels are not there")


class Counter(TorchDispatchMode):
    """Operations that PyTorch dispatches, and bytes of the tensors that they make anew."""

    def __init__(self):
        super().__init__()
        self.operations, self.new_bytes = 0, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        given = {t.untyped_storage().data_ptr() for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        self.operations += 1
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage().data_ptr() not in given:
                self.new_bytes += tensor.untyped_storage().nbytes()
        return out


def counted(action):
    """Counts of the second call; the first makes what later ones keep."""
    action()
    with Counter() as counter:
        action()
    return counter


def problem():
    network = MLP(INPUTS, (WIDTH,) * 3, CLASSES, n_pseudo=POINTS)
    x, y = torch.rand(BATCH, INPUTS), torch.randint(CLASSES, (BATCH,))
    return network, CategoricalLikelihood(), list(network.parameters()), x, y


def make_step():
    network, likelihood, parameters, x, y = problem()
    objective = Objective(network, likelihood, 50_000)
    return lambda: differentiate(objective, parameters, Batch(x, y, None))


@needs_kernels
def test_operations_of_a_step():
    assert counted(make_step()).operations <= 135  # 127


def test_operations_of_a_step_without_kernels(monkeypatch):
    monkeypatch.setattr(library, "native", lambda *tensors: None)
    assert counted(make_step()).operations <= 1_260  # 1,198


@needs_kernels
def test_new_tensors_of_a_step():
    assert counted(make_step()).new_bytes <= 3_000_000  # 2,921,308; the gradients and the workspace have a million each

"""What the compiled kernels refuse: they see addresses and sizes, and must never read or write beyond an array."""

import numpy as np
import pytest
import torch

from vmg.fused import filtering, layer_passes, library
from vmg.fused.pass_memory import PassMemory, make_plan
from vmg.priors import IsotropicPrior, short_kl

needs_kernels = pytest.mark.skipif(not library.available(), reason="no compiled kernels, or VMG_NATIVE=0")


def layer_inputs(**changes):
    """Inputs of a layer of 3 rows and 2 outputs without pseudo-data, at a batch of 4."""
    tensors = {"x": torch.zeros(4, 3), "M": torch.zeros(3, 2), "log_row": torch.zeros(3), "log_column": torch.zeros(2)}
    rest = dict.fromkeys(("points", "log_noise", "log_point_noise", "point_noise"))
    return layer_passes.Inputs(**{**tensors, **rest, "noise": torch.zeros(4, 2), **changes})


def layer_memory(workspace=None):
    plan = make_plan((), 4, 3, 3, 2, 0, False)
    return PassMemory(plan, torch.empty(plan.total) if workspace is None else workspace)


@needs_kernels
@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("M", torch.zeros(2, 3).mT, r"M must be contiguous; got strides \(1, 3\)"),
        ("M", torch.zeros(3, 3), r"M must have shape \(3, 2\); got \(3, 3\)"),
        ("noise", torch.zeros(4, 2, dtype=torch.float64), "noise must be torch.float32 on the CPU; got torch.float64"),
        ("x", torch.zeros(4, 3, device="meta"), "x must be torch.float32 on the CPU; got torch.float32 on meta"),
    ],
)
def test_a_pass_refuses_what_it_would_misread(name, tensor, message):
    kernels, memory = library.native(torch.zeros(1)), layer_memory()
    inputs = layer_inputs()
    assert layer_passes.Forward(layer_passes.bind_operands(kernels, memory, inputs, 1.0, 1e-6)).run(inputs.x)
    with pytest.raises(ValueError, match=message):
        layer_passes.bind_operands(kernels, memory, layer_inputs(**{name: tensor}), 1.0, 1e-6)


@needs_kernels
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"g": torch.zeros(2, 4).mT}, "g must be contiguous"),
        ({"gradient": torch.zeros(3, 3)}, r"the gradient of M must have shape \(3, 2\)"),
        ({"gradient": torch.zeros(3, 2, dtype=torch.float64)}, "the gradient of M must be torch.float32"),
        ({"workspace": torch.zeros(3)}, "the workspace must have shape"),
    ],
)
def test_a_backward_pass_refuses_what_it_would_misread(wrong, message):
    kernels, inputs = library.native(torch.zeros(1)), layer_inputs()
    gradients = [None, wrong.get("gradient", torch.zeros(3, 2)), torch.zeros(3), torch.zeros(2), None, None, None]
    memory, g = layer_memory(wrong.get("workspace")), wrong.get("g", torch.zeros(4, 2))
    operands = layer_passes.bind_operands(kernels, memory, inputs, 1.0, 1e-6)
    with pytest.raises(ValueError, match=message):
        layer_passes.Backward(operands, g, gradients)


@needs_kernels
def test_the_divergence_refuses_what_it_would_misread():
    kernels, kl = library.native(torch.zeros(1)), short_kl(IsotropicPrior(), (3, 2), None)
    tensors = [torch.zeros(3, 2), torch.zeros(3), torch.zeros(2), None, None]
    assert torch.isfinite(kl.bind(kernels, tensors).value())
    with pytest.raises(ValueError, match=r"log_column must have shape \(2,\); got \(3,\)"):
        kl.bind(kernels, [*tensors[:2], torch.zeros(3), None, None])
    kl.bind(kernels, tensors)
    with pytest.raises(ValueError, match=r"g must be torch.float32 on the CPU; got torch.float64"):
        kl.bind_gradients(tensors, torch.zeros((), dtype=torch.float64), tensors)
    with pytest.raises(ValueError, match=r"the gradient of M must be contiguous; got strides \(1, 3\)"):
        kl.bind_gradients(tensors, torch.zeros(()), [torch.zeros(2, 3).mT, *tensors[1:]])


def test_only_contiguous_tensors_of_one_kind_are_filled():
    with pytest.raises(ValueError, match=r"must be contiguous, .*got strides \(1, 2\)"):
        library.fill_normal([torch.zeros(2, 3).mT.contiguous(), torch.zeros(3, 2).mT], None)
    with pytest.raises(ValueError, match=r"got strides .*torch\.float64"):
        library.fill_normal([torch.zeros(2), torch.zeros(2, dtype=torch.float64)], None)


@needs_kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_memory_that_is_not_there_is_an_error_not_an_abort(dtype):
    """P·R = 2⁶⁰ entries: the C++ exception must not cross into Python's interpreter, which would end the process."""
    sizes = (1, 1, 2**30, 2**30, 1, 2**30, 0, False)
    n_pointers = library.LAYER.layout.count(":ptr")
    with pytest.raises(MemoryError, match="must have memory"):
        library.native(torch.zeros(1, dtype=dtype)).forward(library.LAYER.pack(*sizes, 1.0, 1e-6, *[0] * n_pointers))


@needs_kernels
def test_a_library_with_other_fields_is_not_used():
    compiled = library._library().vmg_fields().decode()
    assert compiled == library.LAYOUT
    assert compiled.startswith("layer{n:i64,B:i64,") and "damping:f64,x:ptr," in compiled


@needs_kernels
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y": np.zeros((2, 4))}, r"y must have shape \(2, 5\); got \(2, 4\)"),
        ({"order": np.full((2, 5), 5)}, "order hold row numbers below"),
        ({"n_rows": np.array([5, 6])}, "n_rows must be at most 5"),
        ({"m": np.zeros((2, 12))}, r"m must have shape \(2, 13\); got \(2, 12\)"),
        ({"v": np.ones((13, 2)).T}, "v must be contiguous, writeable and float64"),
        ({"noise": np.ones((2, 2), dtype=np.float32)}, "noise must be contiguous, writeable and float64"),
    ],
)
def test_the_filter_refuses_what_it_would_misread(changes, message):
    given = {
        "sizes": np.array([2, 3, 1]),
        "n_rows": np.array([5, 4]),
        "x": np.zeros((2, 5, 2)),
        "y": np.zeros((2, 5)),
        "order": np.tile(np.arange(5), (2, 1)),
        "m": np.zeros((2, 13)),
        "v": np.ones((2, 13)),
        "noise": np.full((2, 2), 3.0),
    }
    assert np.isfinite(filtering.filter_rows(**given, known=False)).all()
    with pytest.raises(ValueError, match=message):
        filtering.filter_rows(**{**given, **changes}, known=False)

"""What the compiled kernels refuse: they see addresses and sizes, and must never read or write beyond an array."""

import ctypes

import pytest
import torch

from vmg.fused import library, passes
from vmg.fused.divergence import DiagonalKL
from vmg.fused.passes import make_plan
from vmg.priors import IsotropicPrior

needs_kernels = pytest.mark.skipif(not library.available(), reason="no compiled kernels, or VMG_NATIVE=0")


def parameters(**changes):
    """Those of a layer of 3 rows and 2 outputs without pseudo-data."""
    own = {"M": torch.zeros(3, 2), "log_row": torch.zeros(3), "log_column": torch.zeros(2)} | changes
    return [*own.values(), None, None, None]


def layer_pass(noise=None):
    return passes.LayerPass(make_plan((), 4, 3, 3, 2, 0, False), (None, noise or torch.zeros(4, 2)), 1e-6)


@needs_kernels
@pytest.mark.parametrize(
    ("changes", "x", "message"),
    [
        ({"M": torch.zeros(3, 3)}, torch.zeros(4, 3), r"M must have shape \(3, 2\); got \(3, 3\)"),
        (
            {"log_row": torch.zeros(3, dtype=torch.float64)},
            torch.zeros(4, 3),
            "log_row must be torch.float32 on the CPU",
        ),
        ({}, torch.zeros(4, 3, device="meta"), "x must be torch.float32 on the CPU; got torch.float32 on meta"),
        ({}, torch.zeros(5, 3), r"x must have shape \(4, 3\); got \(5, 3\)"),
    ],
)
def test_a_pass_refuses_what_it_would_misread(changes, x, message):
    assert layer_pass().forward(torch.zeros(4, 3), parameters(M=torch.zeros(2, 3).mT))[1], "gaps are closed"
    with pytest.raises(ValueError, match=message):
        layer_pass().forward(x, parameters(**changes))


@needs_kernels
def test_a_backward_pass_refuses_what_it_would_misread():
    one = layer_pass()
    one.forward(torch.zeros(4, 3), parameters())
    with pytest.raises(ValueError, match=r"g must have shape \(4, 2\); got \(2, 4\)"):
        one.backward(parameters(), torch.zeros(2, 4), needs_x=True)
    with pytest.raises(ValueError, match=r"g must be torch.float32 on the CPU; got torch.float64"):
        one.backward(parameters(), torch.zeros(4, 2, dtype=torch.float64), needs_x=True)
    with pytest.raises(ValueError, match=r"M must have shape \(3, 2\); got \(2, 3\)"):
        one.backward(parameters(M=torch.zeros(2, 3)), torch.zeros(4, 2), needs_x=True)


@needs_kernels
def test_the_divergence_refuses_what_it_would_misread():
    kernels = library.native(torch.zeros(1))
    kl = DiagonalKL(None, IsotropicPrior().coefficients(6), (0, 3, 2), False, 0.0)
    tensors = [torch.zeros(3, 2), torch.zeros(3), torch.zeros(2), None, None]
    assert torch.isfinite(kl.value(kernels, tensors))
    with pytest.raises(ValueError, match=r"log_column must have shape \(2,\); got \(3,\)"):
        kl.value(kernels, [*tensors[:2], torch.zeros(3), None, None])
    kl.value(kernels, tensors)
    with pytest.raises(ValueError, match=r"g must be torch.float32 on the CPU; got torch.float64"):
        kl.add_gradients(tensors, torch.zeros((), dtype=torch.float64), tensors)
    with pytest.raises(ValueError, match=r"the gradient of M must be contiguous; got strides \(1, 3\)"):
        kl.add_gradients(tensors, torch.zeros(()), [torch.zeros(2, 3).mT, *tensors[1:]])


@needs_kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_memory_that_is_not_there_is_an_error_not_an_abort(dtype):
    """P·R = 2⁶⁰ entries: the C++ exception must not cross into Python's interpreter, which would end the process."""
    sizes = (1, 1, 2**30, 2**30, 1, 2**30, 0, False)
    n_pointers = library.LAYER.layout.count(":ptr")
    with pytest.raises(MemoryError, match="must have memory"):
        library.native(torch.zeros(1, dtype=dtype)).forward(library.LAYER.pack(*sizes, 1.0, 1e-6, *[0] * n_pointers), 1)


@needs_kernels
def test_python_packs_the_fields_that_the_kernels_read():
    fields = library._library().vmg_fields
    fields.restype = ctypes.c_char_p
    compiled = fields().decode()
    assert compiled == library.LAYOUT
    assert compiled.startswith("layer{n:i64,B:i64,") and "damping:f64,x:ptr," in compiled

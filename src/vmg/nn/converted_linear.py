"""The paper's layer in the place of ``nn.Linear``."""

from __future__ import annotations

from torch import Tensor

from vmg.nn.matrix_gaussian import MatrixGaussianLinear

__all__ = ["ConvertedLinear"]


class ConvertedLinear(MatrixGaussianLinear):
    """:class:`~vmg.nn.MatrixGaussianLinear` that code written for ``nn.Linear`` can read.

    ``weight`` [out, in] and ``bias`` [out] (or None) are those at the mean pseudo-data (``centre_weight``), which are
    the weights of the plain layer at the start. Whoever multiplies with them gets ``forward_centre`` and no
    uncertainty; calling the layer draws.
    """

    @property
    def bias(self) -> Tensor | None:
        """The bias of ``centre_weight``, [*batch_shape, out]."""
        return self.as_linear(self.centre_weight())[1]

"""Functions of anchored networks at many rows, fast: for prediction, where nothing is differentiated."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vmg.nn.anchored import AnchoredFeatures, activate_

__all__ = ["AnchoredFunctions"]

Array = NDArray[np.float64]

BLOCK_ROWS = 256  # whose activations stay in the cache of a core


class AnchoredFunctions:
    """f(x) = φ(x)ᵀw of each of E members with w ~ N(m, A⁻¹), A = LLᵀ: centres φᵀm and variances ‖L⁻¹φ‖².

    The same as features, a product and a triangular solve in double precision, up to rounding. The scales of the layers
    and of the features are folded into matrices, the solve is a product with L⁻¹, and no features are put together.

    Parameters
    ----------
    features : AnchoredFeatures
        φ, in double precision.
    mean : tensor [E, F, C]
        m of C outputs.
    root : tensor [E, F, F]
        L.
    """

    @torch.no_grad()
    def __init__(self, features: AnchoredFeatures, mean: Tensor, root: Tensor) -> None:
        self.n_outputs = mean.shape[-1]
        self._activations = features.activations
        self._layers = [(W[:, :-1].contiguous(), W[:, -1:].contiguous()) for W in features.layers()]
        identity = torch.eye(root.shape[-1], dtype=root.dtype).expand_as(root)
        inverse = torch.linalg.solve_triangular(root, identity, upper=False)
        last = torch.cat([mean, inverse.mT], -1) * features.feature_scales().to(mean.dtype).unsqueeze(
            -1
        )  # [E, F, C + F]
        parts = last.split(list(features.group_sizes), -2)
        self._of_hidden = parts[0].contiguous() if features.hidden else None
        self._of_inputs, self._of_one = parts[-2].contiguous(), parts[-1].contiguous()

    def __call__(self, x: Array) -> tuple[Array, Array]:
        """Centres [E, N, C] and variances [E, N] at softened inputs [N, D]."""
        n_members, n_rows = len(self._of_one), len(x)
        centres, variances = np.empty((n_members, n_rows, self.n_outputs)), np.empty((n_members, n_rows))
        for start in range(0, n_rows, BLOCK_ROWS):
            rows = slice(start, start + BLOCK_ROWS)
            found = self._block(torch.as_tensor(x[rows], dtype=torch.float64)).numpy()
            centres[:, rows] = found[..., : self.n_outputs]
            half = found[..., self.n_outputs :]
            np.einsum("enf,enf->en", half, half, out=variances[:, rows])
        return centres, variances

    @torch.no_grad()
    def _block(self, rows: Tensor) -> Tensor:
        """φᵀm and L⁻¹φ, side by side: [E, n, C + F]."""
        x = rows.expand(len(self._of_one), *rows.shape)
        found = torch.baddbmm(self._of_one, x, self._of_inputs)
        if self._of_hidden is None:
            return found
        h = x
        for weight, bias in self._layers:
            h = torch.baddbmm(bias, h, weight)
            for name, part in zip(self._activations, h.tensor_split(len(self._activations)), strict=True):
                activate_(name, part)
        return found.baddbmm_(h, self._of_hidden)

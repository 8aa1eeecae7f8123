"""Convolutions whose kernel, [C_in·k (·k) + 1, C_out] as one matrix, is matrix Gaussian."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vmg.nn.bayesian import BayesianModule
from vmg.nn.matrix_gaussian import MatrixGaussianLinear

__all__ = ["MatrixGaussianConv1d", "MatrixGaussianConv2d"]

CONV_SAMPLERS = ("weights", "marginal")


class _MatrixGaussianConv(BayesianModule):
    """A convolution is the linear layer of its patches, at all positions.

    Parameters
    ----------
    in_channels, out_channels, kernel_size, stride, padding, dilation, bias, padding_mode
        As in ``nn.Conv2d``.
    sampling : {"weights", "marginal"}
        One kernel for the whole call, or noise of its own at every position. The second has less noisy gradients, but
        positions that are pooled later average their noise away, and with it the uncertainty.
    **layer_options
        All other options of :class:`~vmg.nn.MatrixGaussianLinear`; pseudo-data are pseudo-patches.
    """

    N_SPATIAL: int

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] = 1,
        padding: int | str | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        bias: bool = True,
        *,
        padding_mode: str = "zeros",
        sampling: str = "weights",
        **layer_options: Any,
    ) -> None:
        super().__init__()
        if sampling not in CONV_SAMPLERS:
            raise ValueError(f"sampling must be one of {CONV_SAMPLERS}; got {sampling!r}")
        if layer_options.get("batch_shape"):
            raise ValueError(f"batch_shape must be empty for a convolution; got {layer_options['batch_shape']}")
        self.in_channels, self.out_channels = in_channels, out_channels
        self.kernel_size, self.stride, self.dilation = map(self._each, (kernel_size, stride, dilation))
        self.padding: str | tuple[int, ...] = padding if isinstance(padding, str) else self._each(padding)
        self.padding_mode, self.sampling, self.groups = padding_mode, sampling, 1
        n_inputs = in_channels * torch.Size(self.kernel_size).numel()
        self.matrix = MatrixGaussianLinear(n_inputs, out_channels, bias, **layer_options)

    def _each(self, value: int | Sequence[int]) -> tuple[int, ...]:
        return (value,) * self.N_SPATIAL if isinstance(value, int) else tuple(value)

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, sampling={self.sampling}"

    def kl_divergence(self) -> Tensor:
        return self.matrix.kl_divergence()

    @property
    def weight(self) -> Tensor:
        """The kernel at the mean pseudo-data as ``nn.Conv2d`` has it."""
        return self._kernel(self.matrix.centre_weight())[0]

    @property
    def bias(self) -> Tensor | None:
        """The bias at the mean pseudo-data."""
        return self._kernel(self.matrix.centre_weight())[1]

    def _kernel(self, weight: Tensor) -> tuple[Tensor, Tensor | None]:
        """W [R, C] as a kernel [C_out, C_in, k, ...] and a bias."""
        kernel, bias = self.matrix.as_linear(weight)
        return kernel.reshape(self.out_channels, self.in_channels, *self.kernel_size), bias

    def as_plain(self, *, centre: bool = True) -> nn.Conv1d | nn.Conv2d:
        weight, bias = self.matrix.plain_parameters(centre=centre)
        kind: Any = nn.Conv1d if self.N_SPATIAL == 1 else nn.Conv2d
        sizes = self.in_channels, self.out_channels, self.kernel_size, self.stride, self.padding, self.dilation
        like = {"dtype": weight.dtype, "device": weight.device}
        plain = kind(*sizes, bias=bias is not None, padding_mode=self.padding_mode, **like)
        plain.weight.copy_(weight.reshape(plain.weight.shape))
        if bias is not None:
            plain.bias.copy_(bias)
        return plain

    def forward(self, x: Tensor) -> Tensor:
        """One posterior draw of the feature maps."""
        if self.sampling == "marginal" and self.matrix.drawn is None:
            return self._draw_marginal(x)
        return self._convolve(x, self.matrix.current_weight())

    def forward_mean(self, x: Tensor) -> Tensor:
        """The feature maps of the mean kernel."""
        return self._convolve(x, self.matrix.mean_weight())

    def forward_centre(self, x: Tensor) -> Tensor:
        """The feature maps of the kernel at the mean pseudo-data."""
        return self._convolve(x, self.matrix.centre_weight())

    def _convolve(self, x: Tensor, weight: Tensor) -> Tensor:
        kernel, bias = self._kernel(weight.to(x.dtype))
        convolve = F.conv1d if self.N_SPATIAL == 1 else F.conv2d
        if self.padding_mode == "zeros":  # no padded copy of x
            return convolve(x, kernel, bias, self.stride, self.padding, self.dilation)
        return convolve(self._pad(x), kernel, bias, self.stride, 0, self.dilation)

    def _pad(self, x: Tensor) -> Tensor:
        mode = "constant" if self.padding_mode == "zeros" else self.padding_mode
        sides = self._sides()
        return F.pad(x, sides, mode=mode) if any(sides) else x

    def _sides(self) -> list[int]:
        """Padding before and after, last dimension first, as ``F.pad`` wants it."""
        if self.padding == "valid":
            return [0] * (2 * self.N_SPATIAL)
        if self.padding == "same":
            totals = [d * (k - 1) for d, k in zip(self.dilation, self.kernel_size, strict=True)]
            return [side for total in reversed(totals) for side in (total // 2, total - total // 2)]
        assert isinstance(self.padding, tuple)
        return [side for p in reversed(self.padding) for side in (p, p)]

    def _draw_marginal(self, x: Tensor) -> Tensor:
        padded = self._pad(x)
        sizes = [
            (n - d * (k - 1) - 1) // s + 1
            for n, k, s, d in zip(
                padded.shape[-self.N_SPATIAL :], self.kernel_size, self.stride, self.dilation, strict=True
            )
        ]
        images = padded if self.N_SPATIAL == 2 else padded.unsqueeze(-2)
        ones = (1,) * (2 - self.N_SPATIAL)
        patches = F.unfold(
            images, (*ones, *self.kernel_size), dilation=(*ones, *self.dilation), stride=(*ones, *self.stride)
        ).mT  # [..., positions, C_in·k·k]
        drawn = self.matrix(patches.reshape(-1, patches.shape[-1]))
        return drawn.reshape(*patches.shape[:-1], -1).mT.reshape(*x.shape[: -self.N_SPATIAL - 1], -1, *sizes)


class MatrixGaussianConv1d(_MatrixGaussianConv):
    """``nn.Conv1d`` with a matrix Gaussian kernel, [C_in·k + 1, C_out]."""

    N_SPATIAL = 1


class MatrixGaussianConv2d(_MatrixGaussianConv):
    """``nn.Conv2d`` with a matrix Gaussian kernel, [C_in·k·k + 1, C_out]."""

    N_SPATIAL = 2

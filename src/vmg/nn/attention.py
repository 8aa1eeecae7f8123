"""Attention whose projections are matrix Gaussian."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from vmg.nn.bayesian import BayesianModule
from vmg.nn.matrix_gaussian import MatrixGaussianLinear

__all__ = ["MatrixGaussianMultiheadAttention"]


class MatrixGaussianMultiheadAttention(BayesianModule):
    """``nn.MultiheadAttention`` with matrix Gaussian projections; each call draws one set of weights.

    Parameters
    ----------
    embed_dim, num_heads, dropout, bias, batch_first
        As in ``nn.MultiheadAttention``; keys and values have ``embed_dim`` features too.
    **layer_options
        Options of :class:`~vmg.nn.MatrixGaussianLinear`, for both projections.
    """

    _qkv_same_embed_dim = False  # what PyTorch's encoder layers ask before they go around forward, to the raw weights

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        *,
        batch_first: bool = False,
        **layer_options: Any,
    ) -> None:
        super().__init__()
        if embed_dim % num_heads:
            raise ValueError(f"embed_dim must be a multiple of num_heads ({num_heads}); got {embed_dim}")
        self.embed_dim, self.num_heads, self.dropout, self.batch_first = embed_dim, num_heads, dropout, batch_first
        self.head_dim = embed_dim // num_heads
        self.in_proj = MatrixGaussianLinear(embed_dim, 3 * embed_dim, bias, **layer_options)
        self.out_proj = MatrixGaussianLinear(embed_dim, embed_dim, bias, **layer_options)

    def extra_repr(self) -> str:
        return f"{self.embed_dim}, {self.num_heads}"

    def kl_divergence(self) -> Tensor:
        return self.in_proj.kl_divergence() + self.out_proj.kl_divergence()

    @property
    def in_proj_weight(self) -> Tensor:
        """The weight of queries, keys and values at the mean pseudo-data, [3·embed_dim, embed_dim]."""
        return self.in_proj.weight

    @property
    def in_proj_bias(self) -> Tensor | None:
        """The bias of queries, keys and values at the mean pseudo-data."""
        return self.in_proj.bias

    def as_plain(self, *, centre: bool = True) -> nn.MultiheadAttention:
        in_weight, in_bias = self.in_proj.plain_parameters(centre=centre)
        out_weight, out_bias = self.out_proj.plain_parameters(centre=centre)
        sizes = self.embed_dim, self.num_heads, self.dropout, in_bias is not None
        like: dict[str, Any] = {"dtype": in_weight.dtype, "device": in_weight.device}
        plain = nn.MultiheadAttention(*sizes, batch_first=self.batch_first, **like)
        assert plain.in_proj_weight is not None
        plain.in_proj_weight.copy_(in_weight)
        plain.out_proj.weight.copy_(out_weight)
        if in_bias is not None and out_bias is not None:
            plain.in_proj_bias.copy_(in_bias)
            plain.out_proj.bias.copy_(out_bias)
        return plain

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Outputs and, where asked for, attention weights, as ``nn.MultiheadAttention`` gives them."""
        in_weight, in_bias = self._drawn(self.in_proj, query)
        out_weight, out_bias = self._drawn(self.out_proj, query)
        turn = self.batch_first and query.dim() == 3
        if turn:
            query, key, value = (t.transpose(0, 1) for t in (query, key, value))
        out, weights = F.multi_head_attention_forward(
            query,
            key,
            value,
            self.embed_dim,
            self.num_heads,
            in_weight,
            in_bias,
            None,
            None,
            False,
            self.dropout,
            out_weight,
            out_bias,
            training=self.training,
            key_padding_mask=key_padding_mask,
            need_weights=need_weights,
            attn_mask=attn_mask,
            average_attn_weights=average_attn_weights,
            is_causal=is_causal,
        )
        return out.transpose(0, 1) if turn else out, weights

    @staticmethod
    def _drawn(projection: MatrixGaussianLinear, like: Tensor) -> tuple[Tensor, Tensor | None]:
        return projection.as_linear(projection.current_weight().to(like.dtype))

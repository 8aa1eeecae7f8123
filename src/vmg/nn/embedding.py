"""An embedding whose table [tokens, features] is one matrix Gaussian."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from vmg.math.linalg import at_least_float32, is_traced
from vmg.math.preactivations import input_divisor
from vmg.nn.bayesian import BayesianModule
from vmg.nn.matrix_gaussian import MatrixGaussianLinear
from vmg.priors import IsotropicPrior

__all__ = ["MatrixGaussianEmbedding"]


class MatrixGaussianEmbedding(BayesianModule):
    """``nn.Embedding`` with a matrix Gaussian table: a token that comes twice in a call has one vector.

    The table is the weight of a linear layer without bias that sees tokens as indicators. There are no pseudo-data: a
    pseudo-input would be a mixture of tokens.

    Args:
        num_embeddings, embedding_dim, padding_idx: as in ``nn.Embedding``; the padding token has its mean, without
            noise, which starts at zero and is not trained.
        **layer_options: options of :class:`~vmg.nn.MatrixGaussianLinear`; the prior is N(0, 1) for each entry of the
            table unless given.
    """

    def __init__(
        self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None, **layer_options: Any
    ) -> None:
        super().__init__()
        if layer_options.get("n_pseudo") or layer_options.get("batch_shape"):
            raise ValueError(f"an embedding must be without pseudo-data and replicas; got {layer_options}")
        self.num_embeddings, self.embedding_dim, self.padding_idx = num_embeddings, embedding_dim, padding_idx
        prior = IsotropicPrior(input_divisor(num_embeddings))  # of W, and the table is W/√R
        self.matrix = MatrixGaussianLinear(num_embeddings, embedding_dim, False, **{"prior": prior, **layer_options})
        if padding_idx is not None and self.matrix.loc is not None:
            with torch.no_grad():
                self.matrix.loc[padding_idx] = 0

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}"

    def kl_divergence(self) -> Tensor:
        matrix = self.matrix
        if self.padding_idx is None or matrix.loc is None:
            return matrix.kl_divergence()
        rows = torch.arange(self.num_embeddings, device=matrix.loc.device).unsqueeze(-1)
        loc = torch.where(rows == self.padding_idx, matrix.loc.detach(), matrix.loc)
        return matrix.prior.kl_divergence(at_least_float32(loc), matrix.row(), matrix.column())

    @property
    def weight(self) -> Tensor:
        """The mean table as ``nn.Embedding`` has it."""
        return self.matrix.mean_weight() / input_divisor(self.num_embeddings)

    def as_plain(self) -> nn.Embedding:
        table = self.matrix.as_plain().weight.detach().mT.clone()
        if self.padding_idx is not None:
            table[self.padding_idx] = self.weight[self.padding_idx]
        return nn.Embedding.from_pretrained(table, freeze=False, padding_idx=self.padding_idx)

    def forward(self, tokens: Tensor) -> Tensor:
        """Vectors [..., features] of one draw of the table."""
        matrix = self.matrix
        if matrix.drawn is not None:
            vectors = matrix.drawn[tokens]
        elif not matrix.is_diagonal or is_traced(tokens):
            vectors = matrix.sample_weight()[tokens]
        else:
            present, place = tokens.unique(return_inverse=True)  # only these rows of the table are drawn
            rows, columns = matrix.row().scale[present], matrix.column().scale
            noise = rows.unsqueeze(-1) * matrix.draw_noise(len(present), self.embedding_dim) * columns
            vectors = (matrix.mean_weight()[present] + noise)[place]
        if self.padding_idx is not None:
            mean = matrix.mean_weight()[self.padding_idx].detach()
            vectors = torch.where((tokens == self.padding_idx).unsqueeze(-1), mean, vectors)
        return vectors / input_divisor(self.num_embeddings)

    def forward_mean(self, tokens: Tensor) -> Tensor:
        """Vectors of the mean table."""
        return self.weight[tokens]

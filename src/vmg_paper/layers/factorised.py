"""Weights with independent Gaussian posteriors: mean field, Graves's estimator, Bayes by Backprop."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn.functional import softplus

from vmg.nn.bayesian import BayesianLinear
from vmg.priors import EnergyPrior, IsotropicPrior, Prior

__all__ = [
    "BayesByBackpropLinear",
    "FactorisedLinear",
    "GravesLinear",
    "LocatedLinear",
    "MeanFieldLinear",
    "ScaleMixture",
    "empirical_kl",
    "sample_local",
]


class LocatedLinear(BayesianLinear):
    """A layer with a weight matrix for its centre, which starts at N(0, 2), bias row 0.

    This is He's scheme, as the layer divides its input by √R.
    """

    loc: nn.Parameter  # [*batch_shape, R, C]

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, *, batch_shape: Sequence[int] = ()
    ) -> None:
        super().__init__(in_features, out_features, bias, batch_shape)
        self.loc = nn.Parameter(torch.empty(*batch_shape, self.n_rows, out_features))
        self._start_loc()

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        self._start_loc(generator)

    def _start_loc(self, generator: torch.Generator | None = None) -> None:
        with torch.no_grad():
            self.loc.normal_(0, math.sqrt(2), generator=generator)
            self.loc[..., self.in_features :, :] = 0

    def mean_weight(self) -> Tensor:
        return self.loc


class FactorisedLinear(LocatedLinear):
    """W_rc ~ N(M_rc, S_rc²), all entries independent.

    Parameters
    ----------
    in_features, out_features, bias
        As in ``nn.Linear``.
    initial_scale : float
        S at the start of training. A very small one makes the divergence so large at first that it drives all means
        to zero before the data are heard.
    batch_shape : sequence of int
        Independent replicas.
    """

    log_scale: nn.Parameter  # log S; loc is M

    def __init__(self, *sizes: Any, initial_scale: float = 0.01, **options: Any) -> None:
        super().__init__(*sizes, **options)
        if not initial_scale > 0:
            raise ValueError(f"initial_scale must be positive; got {initial_scale}")
        self.initial_scale = initial_scale
        self.log_scale = nn.Parameter(torch.full_like(self.loc, math.log(initial_scale)))

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Means by He's scheme, all scales at ``initial_scale``."""
        super().reset_parameters(generator)
        with torch.no_grad():
            self.log_scale.fill_(math.log(self.initial_scale))

    def scale(self) -> Tensor:
        """S, [*batch_shape, R, C]."""
        return self.log_scale.exp()

    def sample_weight(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return self.loc + self.scale() * self.draw_noise(*sample_shape, *self.loc.shape)


def sample_local(x: Tensor, M: Tensor, S: Tensor, noise: Tensor) -> Tensor:
    """Each output on its own, N(x̂M, x̂² S²) (Kingma, Salimans & Welling 2015, eq. 6); noise [..., B, C]."""
    variance = x.square() @ S.square()
    return x @ M + variance.clamp_min(torch.finfo(x.dtype).tiny).sqrt() * noise  # √ has no slope at 0


class MeanFieldLinear(FactorisedLinear):
    """W_rc ~ N(M_rc, S_rc²), drawn through the outputs (Kingma, Salimans & Welling 2015).

    Parameters
    ----------
    in_features, out_features, bias, initial_scale, batch_shape
        As in :class:`FactorisedLinear`.
    prior : Prior, optional
        N(0, 1) for every weight if None, or an isotropic or Gamma prior of the matrix Gaussian layers.
    """

    prior: EnergyPrior

    def __init__(self, *sizes: Any, prior: Prior | None = None, **options: Any) -> None:
        super().__init__(*sizes, **options)
        own = (IsotropicPrior() if prior is None else prior).fresh(self.batch_shape)
        if not isinstance(own, EnergyPrior):
            raise ValueError(f"prior must be isotropic, or have Gamma precisions; got {own}")
        self.prior = own

    def _draw(self, x: Tensor) -> Tensor:
        noise = self.draw_noise(*self.batch_shape, x.shape[-2], self.out_features)
        return sample_local(x, self.loc, self.log_scale.exp(), noise)

    def kl_divergence(self) -> Tensor:
        energy = (self.loc.square() + (2 * self.log_scale).exp()).sum((-2, -1))
        return self.prior.kl_of_energy(energy, self.n_rows * self.out_features) - self.log_scale.sum((-2, -1))


class _GravesProduct(Function):
    """x̂W at W = M + S ⊙ E, with Graves's gradient of the variances in place of the exact one.

    ∂L/∂M is that of the weights that were drawn (eq. 16). ∂L/∂S² = ½ E ∂²L/∂W² is replaced by half the mean over
    rows of (∂ log p(y|x, W)/∂W)², the diagonal of the empirical Gauss-Newton matrix (eq. 17). A linear layer has it
    as one product: the gradient of row n is x̂_nᵀ g_n, so its square is (x̂_n²)ᵀ g_n².
    """

    @staticmethod
    def forward(ctx: Any, n_terms: int, x: Tensor, M: Tensor, log_S: Tensor, noise: Tensor) -> Tensor:
        S = log_S.exp()
        W = M + S * noise
        ctx.n_terms = n_terms
        ctx.save_for_backward(x, S, W)
        return x @ W

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, S, W = ctx.saved_tensors
        # the objective is a mean of n terms, so g holds a term's gradient over n: n Σ g² is the mean of the squares
        squares = ctx.n_terms * (x.square().mT @ g.square())
        g_log_S = S.square() * squares  # ½ squares for S², and dS²/d log S = 2S²
        return None, g @ W.mT, x.mT @ g, g_log_S, None


def empirical_kl(M: Tensor, log_S: Tensor) -> Tensor:
    """KL to the Gaussian prior of all weights of the layer that makes it smallest (Graves 2011, eq. 20).

    Its mean is μ = mean(M) and its variance σ² = mean(S² + (M − μ)²); what is left is Σ log(σ/S).
    """
    centred = M - M.mean((-2, -1), keepdim=True)
    variance = ((2 * log_S).exp() + centred.square()).mean((-2, -1))
    size = M.shape[-2] * M.shape[-1]
    return 0.5 * size * variance.log() - log_S.sum((-2, -1))


class GravesLinear(FactorisedLinear):
    """W_rc ~ N(M_rc, S_rc²) with one draw of W for all rows of a batch and the biased estimator of Graves (2011).

    The objective must be a mean over the rows of the batch, as :func:`vmg.elbo` is.
    Differs from Graves: each layer has a prior of its own.
    """

    def _draw(self, x: Tensor) -> Tensor:
        x = x.expand(*self.batch_shape, *x.shape[-2:])
        return _GravesProduct.apply(x.shape[-2], x, self.loc, self.log_scale, self.draw_noise(*self.loc.shape))

    def kl_divergence(self) -> Tensor:
        return empirical_kl(self.loc, self.log_scale)


LOG_2PI = math.log(2 * math.pi)
EXACT = 40.0  # where log(1 + e^d) is d in double precision


@dataclass(frozen=True)
class ScaleMixture:
    """π N(0, s₁²) + (1 − π) N(0, s₂²) for each weight (Blundell et al. 2015, eq. 7).

    The defaults are the middle of the paper's grid: π = 1/2, s₁ = 1, s₂ = e⁻⁶.
    """

    share: float = 0.5  # π
    wide: float = 1.0  # s₁
    narrow: float = math.exp(-6)  # s₂

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise ValueError(f"share must be inside (0, 1); got {self.share}")
        if not 0 < self.narrow < self.wide:
            raise ValueError(f"narrow and wide must be 0 < narrow < wide; got {self.narrow} and {self.wide}")

    def log_prob(self, weight: Tensor) -> Tensor:
        """log p of each entry.

        As the wide part's logarithm plus log(1 + e^d), d the narrow part's logarithm less the wide one's: d only falls
        with |w|, so that nothing cancels far out, and each entry costs a single exponential.
        """
        square = weight.square()
        log_wide = math.log(self.share / self.wide) - 0.5 * LOG_2PI - square * (0.5 / self.wide**2)
        odds = math.log((1 - self.share) / self.narrow) - math.log(self.share / self.wide)
        d = odds - square * (0.5 / self.narrow**2 - 0.5 / self.wide**2)
        return log_wide + softplus(d, threshold=EXACT)


class BayesByBackpropLinear(FactorisedLinear):
    """W_rc ~ N(M_rc, S_rc²), one draw of W for all rows of a batch (Blundell et al. 2015).

    ``kl_divergence`` is a Monte Carlo estimate, log q(W) − log p(W) at the weights that the last ``forward`` drew; it
    may be negative. Differs from Blundell et al.: S is kept as its logarithm, and the prior is of weights whose
    inputs are divided by √R.

    Parameters
    ----------
    in_features, out_features, bias, initial_scale, batch_shape
        As in :class:`~vmg_paper.layers.factorised.FactorisedLinear`.
    prior : ScaleMixture
        Of every weight.
    scale_rate : float
        How far log S moves from its start when ``log_scale`` moves by one. Adam takes steps of one size in all
        parameters, and carries scales to the prior's wide part long before the means have learned; under the plain
        gradient descent of Blundell et al. scales hardly leave their start. Well below 1 has Adam do as much.
    """

    last_noise: Tensor | None

    def __init__(
        self,
        *sizes: Any,
        prior: ScaleMixture | None = None,
        scale_rate: float = 1.0,
        **options: Any,
    ) -> None:
        super().__init__(*sizes, **options)
        if not 0 <= scale_rate <= 1:
            raise ValueError(f"scale_rate must be in [0, 1]; got {scale_rate}")
        self.scale_rate, self.prior = scale_rate, prior or ScaleMixture()
        self.register_buffer("last_noise", None, persistent=False)  # E of the last draw, W = M + S ⊙ E

    def scale(self) -> Tensor:
        return self._log_scale().exp()

    def _log_scale(self) -> Tensor:
        """log S."""
        if self.scale_rate == 1:
            return self.log_scale
        start = math.log(self.initial_scale)
        return start + self.scale_rate * (self.log_scale - start)

    def _draw(self, x: Tensor) -> Tensor:
        self.last_noise = self.draw_noise(*self.loc.shape)
        return x @ (self.loc + self.scale() * self.last_noise)

    def kl_divergence(self) -> Tensor:
        """log q(W) − log p(W), summed over weights, at the last draw (or, before the first, at a fresh one)."""
        noise = self.draw_noise(*self.loc.shape) if self.last_noise is None else self.last_noise
        log_scale = self._log_scale()
        weight = self.loc + log_scale.exp() * noise
        log_q = -0.5 * (noise.square() + LOG_2PI) - log_scale
        return (log_q - self.prior.log_prob(weight)).sum((-2, -1))

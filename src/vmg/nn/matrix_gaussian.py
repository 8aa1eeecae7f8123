"""The paper's layer: a linear map whose weights have a matrix Gaussian posterior, sharpened by pseudo-data."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from vmg.fused.bound_layer import Draw
from vmg.fused.diagonal_draw import needs_double
from vmg.fused.library import standard_normal
from vmg.fused.pass_memory import Plan, make_plan
from vmg.math import preactivations as F
from vmg.math.covariance import Conditioned, Covariance, Dense
from vmg.math.linalg import at_least_float32, cholesky, is_traced
from vmg.math.matrix_normal import MatrixNormal
from vmg.nn.bayesian import BayesianLinear
from vmg.nn.diagonal_stack import draw_layers
from vmg.nn.kept_divergences import kept_divergences
from vmg.nn.layer_parameters import FAMILIES, NOISE_KINDS, DiagonalParameters, PseudoData
from vmg.priors import IsotropicPrior, Prior, diagonal_kl, short_kl

__all__ = ["KL_KINDS", "SAMPLERS", "MatrixGaussianLinear"]

SAMPLERS = ("marginal", "joint", "weights")
KL_KINDS = ("marginal", "conditional")
INITIAL_LOG_BIAS_SCALE = -4.0  # of the bias row, as in the authors' code
MEAN_PAIRS = 64
"""Antithetic pairs of draws behind a mean weight: its error is a tenth to a quarter of what the noise moves it by."""


class MatrixGaussianLinear(BayesianLinear):
    """y = x̂W with W ~ MN(M, U, V) and x̂ = [x, 1]/√R [LW16, §2].

    Use it where ``nn.Linear`` stands. Each call draws from the posterior; ``to_linear()`` gives E[W] as a plain
    ``nn.Linear``, ``to_linear(centre=True)`` the weights at the mean pseudo-data.

    Parameters
    ----------
    in_features, out_features, bias
        As in ``nn.Linear``; the bias is one more row of W.
    n_pseudo : int
        Number of pseudo-points P. The paper asks for P < R but runs P >= R on narrow tables: that warns and works.
    row_covariance, column_covariance : {"diagonal", "rank_one", "dense"}
        Families of U and V.
    zero_mean : bool
        Drop M; the pseudo-data alone carry the mean. Needs ``n_pseudo`` > 0.
    prior : Prior, optional
        Of W; MN(0, I, I) if None. The layer keeps a fresh copy where the prior has parameters of its own.
    max_noise : float, or one for each replica [*batch_shape]
        Bound on √α, the noise of the pseudo-data relative to their size.
    pseudo_noise : {"layer", "factored"}
        One √α per layer and kind, or a factor per pseudo-point times a factor per dimension.
    sampling : {"marginal", "joint", "weights"}
        Rows drawn one by one (fast, the paper's choice), all rows of a batch jointly, or through one weight matrix.
    kl : {"marginal", "conditional"}
        What is charged for the weights of a layer with pseudo-data: the paper's KL(q(W) ‖ p(W)), with which the
        objective is *not* a bound, or that of q(W | Ã, B̃), which the layer uses; see :meth:`kl_divergence`.
    damping : float
        σ² on the diagonal of Σ₁₁.
    initial_scale : float
        Standard deviation of the weights at the start of training: 1 as in the authors' code; less converges sooner.
    batch_shape : sequence of int
        Independent replicas in one module: parameters gain these leading dimensions, inputs are [*batch_shape, B, in]
        or, shared by all replicas, [B, in].
    """

    loc: nn.Parameter | None
    pseudo_data: PseudoData | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        n_pseudo: int = 0,
        row_covariance: str = "diagonal",
        column_covariance: str = "diagonal",
        zero_mean: bool = False,
        prior: Prior | None = None,
        max_noise: float | Tensor | Sequence[float] = 0.25,
        pseudo_noise: str = "layer",
        sampling: str = "marginal",
        kl: str = "marginal",
        damping: float = F.DAMPING,
        initial_scale: float = 1.0,
        batch_shape: Sequence[int] = (),
    ) -> None:
        super().__init__(in_features, out_features, bias, batch_shape)
        if n_pseudo < 0:
            raise ValueError(f"n_pseudo must be >= 0; got {n_pseudo}")
        if zero_mean and n_pseudo == 0:
            raise ValueError("zero_mean needs n_pseudo >= 1: without pseudo-data nothing would carry the mean; got 0")
        for name, family in (("row_covariance", row_covariance), ("column_covariance", column_covariance)):
            if family not in FAMILIES:
                raise ValueError(f"{name} must be one of {tuple(FAMILIES)}; got {family!r}")
        if pseudo_noise not in NOISE_KINDS:
            raise ValueError(f"pseudo_noise must be one of {NOISE_KINDS}; got {pseudo_noise!r}")
        if sampling not in SAMPLERS:
            raise ValueError(f"sampling must be one of {SAMPLERS}; got {sampling!r}")
        if kl not in KL_KINDS:
            raise ValueError(f"kl must be one of {KL_KINDS}; got {kl!r}")
        if not damping > 0:
            raise ValueError(f"damping must be positive; got {damping}")
        if not initial_scale > 0:
            raise ValueError(f"initial_scale must be positive; got {initial_scale}")
        self.n_pseudo, self.sampling, self.kl, self.damping = n_pseudo, sampling, kl, damping
        self.initial_scale = initial_scale
        R, C = self.n_rows, out_features
        if n_pseudo >= R:
            warnings.warn(
                f"n_pseudo should be < {'in_features + 1' if bias else 'in_features'} ({R}), the rank of the row "
                f"kernel; got {n_pseudo}. The layer's "
                "own variance vanishes and only the noise of the pseudo-data is left.",
                stacklevel=2,
            )

        self.loc = None if zero_mean else nn.Parameter(torch.empty(*batch_shape, R, C))
        self.row = FAMILIES[row_covariance](R, batch_shape)
        self.column = FAMILIES[column_covariance](C, batch_shape)
        self.is_diagonal = isinstance(self.row, DiagonalParameters) and isinstance(self.column, DiagonalParameters)
        self.pseudo_data = None
        if n_pseudo:
            self.pseudo_data = PseudoData(
                n_pseudo, R, C, max_noise=max_noise, noise=pseudo_noise, batch_shape=batch_shape
            )
        self.prior = (IsotropicPrior() if prior is None else prior).fresh(self.batch_shape)
        self.reset_parameters()

    def extra_repr(self) -> str:
        text = super().extra_repr()
        for name, value in (("sampling", self.sampling), ("kl", self.kl)):
            text += "" if value == "marginal" else f", {name}={value}"
        return text

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Start as the authors' code does: M ~ N(0, 4/(in + out)) with bias row 0, the bias row's scale at most e⁻⁴.

        The paper names He's scheme; 4/(in + out) is the authors' form of it. Rows and columns share ``initial_scale``
        equally.
        """
        R = self.n_rows
        with torch.no_grad():
            if self.loc is not None:
                std = math.sqrt(4 / (self.in_features + self.out_features))
                self.loc.normal_(0, std, generator=generator)
                self.loc[..., self.in_features :, :] = 0
        half = 0.5 * math.log(self.initial_scale)
        log_row_scale = torch.full((R,), half)
        log_row_scale[self.in_features :] = min(INITIAL_LOG_BIAS_SCALE, half)
        self.row.reset(log_row_scale, generator)
        self.column.reset(torch.full((self.out_features,), half), generator)
        if self.pseudo_data is not None:
            self.pseudo_data.reset(generator)

    # -- the posterior as an object -----------------------------------------------------------------------------------

    @property
    def posterior(self) -> MatrixNormal:
        """q(W) = MN(M, U, V), before conditioning on the pseudo-data."""
        return MatrixNormal(self._loc_or_zeros(), self.row(), self.column(), validate_args=False)

    def posterior_given(self, inputs: Tensor | None = None, outputs: Tensor | None = None) -> MatrixNormal:
        """q(W | Ã, B̃) = MN(M_eff, U', V) at pseudo-data [..., P, R] and [..., P, C], their means where None.

        M_eff = M + UÃᵀΣ₁₁⁻¹(B̃ − ÃM) and U' = U − UÃᵀΣ₁₁⁻¹ÃU. In double precision, for U' may be nearly singular.
        """
        if self.pseudo_data is None:
            raise ValueError("posterior_given needs a layer with pseudo-data; got n_pseudo=0")
        A = self._scaled((self.pseudo_data.inputs if inputs is None else inputs).double())
        B = (self.pseudo_data.outputs if outputs is None else outputs).double()
        U, V = (part.to(torch.float64) for part in self.covariances())
        loc = F.fold_mean(None if self.loc is None else self.loc.double(), U, A, B, self.damping)
        return MatrixNormal(loc, Conditioned(U, A, self.damping), V, validate_args=False)

    def _loc(self) -> Tensor | None:
        """M in the precision the layer computes in."""
        return None if self.loc is None else at_least_float32(self.loc)

    def _loc_or_zeros(self) -> Tensor:
        if self.loc is not None:
            return at_least_float32(self.loc)
        scale = at_least_float32(self.row.log_scale)
        return scale.new_zeros(*self.batch_shape, scale.shape[-1], self.out_features)

    def kl_divergence(self) -> Tensor:
        """What the layer's posterior costs, with what the prior's own precisions cost; [*batch_shape].

        ``kl="marginal"`` is the paper's KL(q(W) ‖ p(W)) + KL(q(Ã) ‖ p(Ã)) + KL(q(B̃) ‖ p(B̃)) [LW16, eq. 11]. The layer
        draws from q(W | Ã, B̃), so that what the pseudo-data know of the weights is free of charge. With pseudo-data the
        objective is therefore not a bound; without them it is.

        ``kl="conditional"`` is KL(q(W | Ã, B̃) ‖ p(W)) at a draw of the pseudo-data, an unbiased estimate of its mean
        over them. For any fixed Ã, B̃ the objective with it is a bound on the log evidence of the model p(y | W) p(W),
        so its mean over q(Ã) q(B̃) is one too: that of q(W) = E q(W | Ã, B̃), whose own divergence is at most this.
        The pseudo-data are part of the posterior and no part of the model, so their noise has no prior and no charge.
        It can only loosen the bound: a small ``max_noise`` suits. The draw need not be that of a forward pass, for the
        mean of a difference is the difference of the means.
        """
        kept = kept_divergences()
        if kept and self in kept and len(kept[self].layers) == 1:
            return kept[self].kl
        if not self.uses_marginal_kl:
            assert self.pseudo_data is not None
            q = self.posterior_given(*self.pseudo_data.sample((), self.generator))
            kl = self.prior.kl_divergence(q.loc, q.row_covariance, q.column_covariance)
            return kl.to(self._wide_dtype())
        if self.is_diagonal:
            noise = None if self.pseudo_data is None else self.pseudo_data.projected_noise()
            row, column = at_least_float32(self.row.log_scale), at_least_float32(self.column.log_scale)
            return diagonal_kl(self.prior, self._loc(), row, column, noise)
        kl = self.prior.kl_divergence(self._loc(), self.row(), self.column())
        return kl if self.pseudo_data is None else kl + self.pseudo_data.kl_divergence()

    @property
    def has_own_divergence(self) -> bool:
        """Whether the divergence is the one stated here, and no derived class has another."""
        return type(self).kl_divergence is MatrixGaussianLinear.kl_divergence

    @property
    def uses_marginal_kl(self) -> bool:
        """Whether the divergence is the paper's, which asks for no draw."""
        return self.kl == "marginal" or self.pseudo_data is None

    def predictive(self, x: Tensor) -> MatrixNormal:
        """The joint distribution of the outputs at all rows of x [..., B, in], given the mean pseudo-data."""
        x = F.augment(self.check_input(x), self.has_bias)
        U, V = self.row(), self.column()
        if self.pseudo_data is None:
            return MatrixNormal(x @ self._loc_or_zeros(), U.congruence(x), V, validate_args=False)
        A, B = self._scaled(self.pseudo_data.inputs), self.pseudo_data.outputs
        given = F.condition(x, self._loc(), U, A, B, self.damping)
        level = U.quadratic(x).mean(-1)
        rows = Dense(cholesky(given.row_covariance(x, U), level=level, name="predictive row covariance"))
        return MatrixNormal(given.mean, rows, V, validate_args=False)

    def kernel(self, x1: Tensor, x2: Tensor | None = None, *, full: bool = False) -> Tensor:
        """The GP's kernel K_in = x̂₁ U x̂₂ᵀ [..., n₁, n₂], or V ⊗ K_in with ``full=True`` [LW16, §2.3]."""
        first = F.augment(self.check_input(x1), self.has_bias)
        second = first if x2 is None else F.augment(self.check_input(x2), self.has_bias)
        K_in = self.row().gram(first, second)
        if not full:
            return K_in
        V = self.column().to_dense()
        product = V[..., :, None, :, None] * K_in[..., None, :, None, :]
        return product.flatten(-4, -3).flatten(-2, -1)  # [..., C n₁, C n₂]

    # -- drawing outputs ----------------------------------------------------------------------------------------------

    def forward(self, x: Tensor, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draw outputs as every layer does; each index of ``sample_shape`` has its own draw of the pseudo-data.

        Tokens or positions, dimensions of x between the first and the last, belong together: one weight matrix serves
        them all, whatever ``sampling`` says. Drawn one by one, their noise would average out in whatever pools them.
        """
        if self.drawn is None and self.sampling == "marginal" and not sample_shape:
            if x.dim() > 2 and not self.batch_shape:
                return self.apply_weight(x, self.sample_weight())
            if self.is_diagonal:
                shape, rows = x.shape, self.as_drawn(x)
                out = self._leave(draw_layers([self], rows))
                return out if self.batch_shape or len(shape) == 2 else out.reshape(*shape[:-1], self.out_features)
        return super().forward(x, sample_shape)

    def _draw(self, x: Tensor, sample_shape: Sequence[int]) -> Tensor:
        if self.sampling == "weights":
            return x @ self.sample_weight(sample_shape)
        return self._sample_given(x, sample_shape)

    @property
    def draws_diagonally(self) -> bool:
        """Whether a call is the paper's sampler: marginal rows and diagonal covariances."""
        own = type(self).forward is MatrixGaussianLinear.forward
        return own and self.is_diagonal and self.sampling == "marginal" and self.drawn is None

    def as_drawn(self, x: Tensor) -> Tensor:
        """x as that sampler takes it: [*batch_shape, B, in], in the precision the layer computes in."""
        x, batch_shape = self._as_rows(self.check_shape(self._enter(x)), self.batch_shape), self.batch_shape
        return x.expand(*batch_shape, *x.shape) if batch_shape and x.dim() == 2 else x

    def prepare_draw(self, n_rows: Sequence[int], noises: Sequence[Tensor | None] | None, *, with_kl: bool) -> Draw:
        """What that sampler needs for [..., B] = ``n_rows`` rows, with the divergence, where it can.

        ``noises`` is memory for the noise of the pseudo-points (or None) and of the outputs; None to draw it now.
        """
        pseudo_data, row, column = (
            self.pseudo_data,
            at_least_float32(self.row.log_scale),
            at_least_float32(self.column.log_scale),
        )
        points = log_noise = log_point_noise = pseudo = plan = None
        if pseudo_data is not None:
            points, pseudo = at_least_float32(pseudo_data.points), pseudo_data.projected_noise()
            _, log_noise, log_point_noise, _ = pseudo
        R, C = row.shape[-1], column.shape[-1]
        if not is_traced(row):
            plan = self.plan_draw(n_rows)
        if noises is None:
            shapes = (() if points is None else (points.shape,)) + ((*n_rows, C),)
            noises = standard_normal(*shapes, like=row, generator=self.generator)
        *point_noise, noise = noises
        own = self._loc(), row, column, points, log_noise, log_point_noise
        kl = short_kl(self.prior, (R, C), pseudo) if with_kl and self.uses_marginal_kl else None
        return Draw(plan, own, (*(point_noise or (None,)), noise), 1 / F.input_divisor(R), self.damping, kl)

    def plan_draw(self, n_rows: Sequence[int]) -> Plan:
        """Lay out the memory of that sampler's passes, for so many rows."""
        data = self.pseudo_data
        sizes = self.in_features, self.n_rows, self.out_features, self.n_pseudo
        return make_plan(self.batch_shape, n_rows[-1], *sizes, data is not None and data.log_point_noise is not None)

    def _sample_given(self, x: Tensor, sample_shape: Sequence[int]) -> Tensor:
        """Rows one by one or jointly, for any family of covariances and any number of draws."""
        U, V, marginal = self.row(), self.column(), self.sampling == "marginal"
        noise_shape = (*sample_shape, *self.batch_shape, x.shape[-2], self.out_features)
        if self.pseudo_data is None:
            draw = F.sample_marginal if marginal else F.sample_joint
            return draw(x, self._loc(), U, V, self.draw_noise(*noise_shape))
        A, B = self.pseudo_data.sample(sample_shape, self.generator)
        noise, dtype = self.draw_noise(*noise_shape), x.dtype
        loc = self._loc()
        if needs_double(self.n_pseudo, self.n_rows, dtype):
            U, V = U.to(torch.float64), V.to(torch.float64)
            x, A, B, noise = (part.double() for part in (x, A, B, noise))
            loc = None if self.loc is None else self.loc.double()
        draw_given = F.sample_conditional if marginal else F.sample_conditional_joint
        return draw_given(x, loc, U, V, self._scaled(A), B, noise, self.damping).to(dtype)

    def mean_weight(self) -> Tensor:
        """E[W] [*batch_shape, R, C], the pseudo-inputs' noise averaged over ``MEAN_PAIRS`` fixed pairs of draws.

        W is linear in the pseudo-outputs, whose noise leaves the mean as it is, but not in the pseudo-inputs. At
        √α = 0.5 the mean may be half of :meth:`centre_weight`. Opposite noise in each pair cancels odd orders.
        """
        if self.pseudo_data is None:
            return self._loc_or_zeros()
        A, B = self._scaled(self.pseudo_data.antithetic_inputs(MEAN_PAIRS).double()), self.pseudo_data.outputs.double()
        M = None if self.loc is None else self.loc.double()
        return F.average_mean(M, self.row().to(torch.float64), A, B, self.damping).to(self._wide_dtype())

    def centre_weight(self) -> Tensor:
        """M_eff [*batch_shape, R, C] at the mean pseudo-data: the weights of the paper's mean network [LW16, §4.2]."""
        if self.pseudo_data is None:
            return self._loc_or_zeros()
        return self.posterior_given().loc.to(self._wide_dtype())

    def sample_weight(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Weight matrices W [*sample_shape, *batch_shape, R, C] from the posterior, each one a whole function."""
        U, V = self.covariances()
        R, dtype = self.n_rows, self._wide_dtype()
        noise = self.draw_noise(*sample_shape, *self.batch_shape, R, self.out_features)
        if self.pseudo_data is None:
            W = V.sqrt_matmul(U.sqrt_matmul(noise).mT).mT
            return W if self.loc is None else W + at_least_float32(self.loc)
        A, B = self.pseudo_data.sample(sample_shape, self.generator)
        point_noise, loc = self.draw_noise(*B.shape), self._loc_or_zeros()
        if needs_double(self.n_pseudo, R, dtype):
            U, V = U.to(torch.float64), V.to(torch.float64)
            noise, point_noise, A, B, loc = (part.double() for part in (noise, point_noise, A, B, loc))
        W = loc + V.sqrt_matmul(U.sqrt_matmul(noise).mT).mT
        return F.condition_weights(W, U, V, self._scaled(A), B, point_noise, self.damping).to(dtype)

    def sample_prior_weight(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Weight matrices W [*sample_shape, *batch_shape, R, C] from the prior."""
        R = self.row.log_scale.shape[-1]
        drawn = self.prior.sample((*sample_shape, *self.batch_shape, R, self.out_features), self.generator)
        return drawn.to(self.row.log_scale)

    # -- small things -------------------------------------------------------------------------------------------------

    def _dtype(self) -> torch.dtype:
        return self.row.log_scale.dtype  # found faster than the first parameter, in every call

    def _scaled(self, A: Tensor) -> Tensor:
        """Ã/√R: pseudo-inputs have all R entries, bias included, and share the inputs' scaling."""
        return A / F.input_divisor(A.shape[-1])

    def covariances(self) -> tuple[Covariance, Covariance]:
        """U and V at the present parameters."""
        return self.row(), self.column()

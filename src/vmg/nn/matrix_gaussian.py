"""The paper's layer: a linear map whose weights have a matrix Gaussian posterior, sharpened by pseudo-data.

:class:`MatrixGaussianLinear` is the layer, :class:`PseudoData` its pseudo-data, and :func:`sample_diagonal` the draw of
the paper's experiments, in one function of tensors. :mod:`vmg.math.preactivations` has all four ways to draw.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from vmg.fused import library
from vmg.math import preactivations as F
from vmg.math.covariance import Conditioned, Dense
from vmg.math.linalg import at_least_float32, cholesky, is_traced, needs_double, randn
from vmg.math.matrix_normal import MatrixNormal
from vmg.nn.bayesian import BayesianLinear
from vmg.nn.layer_parameters import FAMILIES, CovarianceParameters
from vmg.priors import IsotropicPrior, KeepsSettings, Prior, pseudo_data_kl

__all__ = ["KL_KINDS", "NOISE_KINDS", "SAMPLERS", "MatrixGaussianLinear", "PseudoData", "sample_diagonal"]

NOISE_KINDS = ("layer", "factored")
SAMPLERS = ("marginal", "joint", "weights")
KL_KINDS = ("marginal", "conditional")
INITIAL_LOG_BIAS_SCALE = -4.0  # of the bias row, as in the authors' code
INITIAL_RANGE = 0.01  # entries of the pseudo-data start in U[-0.01, 0.01] [LW16, §4]
MIN_LOG_SCALE = -4.0  # the authors' lower limit of log √α; below it the noise has no effect and the KL only grows


class PseudoData(KeepsSettings):
    """Pseudo-inputs Ã [P, R] and pseudo-outputs B̃ [P, C] with multiplicative Gaussian posteriors [LW16, §2.4].

    An entry is mean ⊙ (1 + √α ε) with √α <= ``max_noise``. With ``noise="layer"`` there is one √α for all inputs and
    one for all outputs; with ``"factored"`` √α_ij = (point i's factor) × (dimension j's factor), inputs and outputs
    sharing the points' factors, each factor bounded by √max_noise.

    The bound is kept by moving the parameter itself back before each use. A clamp inside the graph would cut the
    gradient at the bound, and √α would never come down again.

    ``max_noise`` is one number, or a tensor [*batch_shape] with a bound for each replica.
    """

    SETTINGS = ("max_noise",)

    points: nn.Parameter  # [Ã, B̃] side by side, [..., P, R+C]
    log_noise: nn.Parameter  # log √α of inputs and outputs [..., 2], or the dimensions' factors [..., R+C]
    log_point_noise: nn.Parameter | None  # the points' factors [..., P], only when factored

    def __init__(
        self,
        n_points: int,
        n_rows: int,
        n_columns: int,
        *,
        max_noise: float | Tensor | Sequence[float] = 0.25,
        noise: str = "layer",
        batch_shape: Sequence[int] = (),
    ) -> None:
        super().__init__()
        bounds = torch.as_tensor(max_noise, dtype=torch.get_default_dtype(), device="cpu")
        if not ((bounds > 0) & (bounds <= 1)).all():
            raise ValueError(f"max_noise, the bound on √α, must be in (0, 1]; got {max_noise}")
        if bounds.dim() and bounds.shape != torch.Size(batch_shape):
            raise ValueError(
                f"max_noise must be one number or one for each of the replicas {tuple(batch_shape)}; "
                f"got shape {tuple(bounds.shape)}"
            )
        if noise not in NOISE_KINDS:
            raise ValueError(f"noise must be one of {NOISE_KINDS}; got {noise!r}")
        self.max_noise: float | Tensor = bounds if bounds.dim() else float(max_noise)  # type: ignore[arg-type]
        self.noise = noise
        self.n_points, self.n_rows, self.n_columns = n_points, n_rows, n_columns
        width = n_rows + n_columns
        factored = noise == "factored"
        self.points = nn.Parameter(torch.empty(*batch_shape, n_points, width))
        self.log_noise = nn.Parameter(torch.empty(*batch_shape, width if factored else 2))
        self.log_point_noise = nn.Parameter(torch.empty(*batch_shape, n_points)) if factored else None
        self.reset()

    def extra_repr(self) -> str:
        bound = "one per replica" if isinstance(self.max_noise, Tensor) else f"{self.max_noise:g}"
        return f"{self.n_points} points, max_noise={bound}, noise={self.noise}"

    @torch.no_grad()
    def reset(self, generator: torch.Generator | None = None) -> None:
        """Entries uniform near zero, √α at its bound, as in the authors' code."""
        self.points.uniform_(-INITIAL_RANGE, INITIAL_RANGE, generator=generator)
        for log_noise in self.log_noises():
            log_noise.copy_(torch.as_tensor(self.limits()[1]).expand_as(log_noise))

    @property
    def inputs(self) -> Tensor:
        """Mean pseudo-inputs, [..., P, R], bias entry included."""
        return at_least_float32(self.points[..., : self.n_rows])

    @property
    def outputs(self) -> Tensor:
        """Mean pseudo-outputs, [..., P, C]."""
        return at_least_float32(self.points[..., self.n_rows :])

    @property
    def noise_scale(self) -> Tensor:
        """√α of every entry of ``points``, [..., P, R+C]."""
        return noise_scale(*self.bounded_noise(), self.n_rows, self.n_columns).expand_as(self.points)

    def log_noises(self) -> list[nn.Parameter]:
        """The parameters of √α."""
        return [self.log_noise] if self.log_point_noise is None else [self.log_noise, self.log_point_noise]

    def limits(self) -> tuple[Any, Any]:
        """The smallest and the largest log √α, or factor of it: numbers, or [*batch_shape, 1] where replicas differ."""
        share = 2 if self.noise == "factored" else 1
        if isinstance(self.max_noise, Tensor):
            highest: Any = self.max_noise.to(self.points).log().unsqueeze(-1) / share
            return highest.clamp(max=MIN_LOG_SCALE), highest
        highest = math.log(self.max_noise) / share
        return min(MIN_LOG_SCALE, highest), highest

    def bounded_noise(self) -> tuple[Tensor, Tensor | None]:
        """``log_noise`` and ``log_point_noise``, moved back into their bounds.

        A recorded program leaves parameters alone: there only the value is bounded, and the gradient stays.
        """
        points = self.log_point_noise
        return self._bounded(self.log_noise), None if points is None else self._bounded(points)

    def _bounded(self, log_noise: Tensor) -> Tensor:
        if is_traced(log_noise):
            log_noise = at_least_float32(log_noise)
            return log_noise + (log_noise.clamp(*self.limits()) - log_noise).detach()
        log_noise.data.clamp_(*self.limits())
        return at_least_float32(log_noise)

    def sample(
        self, sample_shape: Sequence[int] = (), generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """One draw (Ã, B̃) for each index of ``sample_shape``."""
        points = at_least_float32(self.points)
        noise = randn((*sample_shape, *points.shape), like=points, generator=generator)
        drawn = multiplicative_noise(points, self.noise_scale, noise)
        return drawn[..., : self.n_rows], drawn[..., self.n_rows :]

    def kl_divergence(self) -> Tensor:
        """KL of both posteriors to their log-uniform priors, summed over entries; [*batch_shape]."""
        return pseudo_data_kl(*self.bounded_noise(), (self.n_points, self.n_rows, self.n_columns), self.max_noise)


def multiplicative_noise(mean: Tensor, scale: Tensor, noise: Tensor) -> Tensor:
    """mean ⊙ (1 + √α ε) with √α = ``scale``: the posterior of the pseudo-data [LW16, §2.4]."""
    return mean * (1 + scale * noise)


def noise_scale(log_noise: Tensor, log_point_noise: Tensor | None, n_rows: int, n_columns: int) -> Tensor:
    """√α of the entries of [Ã, B̃] from the parameters of :class:`PseudoData`, [..., 1, R+C] or [..., P, R+C]."""
    if log_point_noise is not None:
        return (log_point_noise.unsqueeze(-1) + log_noise.unsqueeze(-2)).exp()
    kinds = zip(log_noise.exp().unsqueeze(-2).split(1, -1), (n_rows, n_columns), strict=True)
    return torch.cat([kind.expand(*kind.shape[:-1], n) for kind, n in kinds], dim=-1)


class MatrixGaussianLinear(BayesianLinear):
    """y = x̂W with W ~ MN(M, U, V) and x̂ = [x, 1]/√R [LW16, §2], in the place of an ``nn.Linear``.

    Each call draws from the posterior; ``to_linear()`` gives the weights at the mean pseudo-data as a plain layer.

    Args:
        in_features, out_features, bias, batch_shape: as in :class:`BayesianLinear`.
        n_pseudo: number of pseudo-points P. The paper asks for P < R but runs P >= R on narrow tables: that warns and
            works.
        row_covariance, column_covariance: {"diagonal", "rank_one", "dense"}; families of U and V.
        zero_mean: drop M; the pseudo-data alone carry the mean. Needs ``n_pseudo`` > 0.
        prior: of W; MN(0, I, I) if None. The layer keeps a fresh copy where the prior has parameters of its own.
        max_noise: bound on √α, the noise of the pseudo-data relative to their size.
        pseudo_noise: {"layer", "factored"}; one √α per layer and kind, or a factor per pseudo-point times a factor per
            dimension.
        sampling: {"marginal", "joint", "weights"}; rows drawn one by one (fast, the paper's choice), all rows of a
            batch jointly, or through one weight matrix.
        kl: {"marginal", "conditional"}; with pseudo-data only the second gives a bound; see :meth:`kl_divergence`.
        damping: σ² on the diagonal of Σ₁₁.
        initial_scale: standard deviation of the weights at the start of training: 1 as in the authors' code; less
            converges sooner.
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
        for name, choice, allowed in (
            ("row_covariance", row_covariance, FAMILIES),
            ("column_covariance", column_covariance, FAMILIES),
            ("pseudo_noise", pseudo_noise, NOISE_KINDS),
            ("sampling", sampling, SAMPLERS),
            ("kl", kl, KL_KINDS),
        ):
            if choice not in allowed:
                raise ValueError(f"{name} must be one of {allowed}; got {choice!r}")
        for name, number in (("damping", damping), ("initial_scale", initial_scale)):
            if not number > 0:
                raise ValueError(f"{name} must be positive; got {number}")
        self.n_pseudo, self.sampling, self.kl, self.damping = n_pseudo, sampling, kl, damping
        self.initial_scale = initial_scale
        R, C = self.n_rows, out_features
        if n_pseudo >= R:
            warnings.warn(
                f"n_pseudo should be < {'in_features + 1' if bias else 'in_features'} ({R}), the rank of the row "
                f"kernel; got {n_pseudo}. Its own variance vanishes and only the noise of the pseudo-data is left.",
                stacklevel=2,
            )
        self.loc = None if zero_mean else nn.Parameter(torch.empty(*batch_shape, R, C))
        self.row = CovarianceParameters(row_covariance, R, batch_shape)
        self.column = CovarianceParameters(column_covariance, C, batch_shape)
        self.is_diagonal = row_covariance == column_covariance == "diagonal"
        self.pseudo_data = None
        if n_pseudo:
            self.pseudo_data = PseudoData(
                n_pseudo, R, C, max_noise=max_noise, noise=pseudo_noise, batch_shape=batch_shape
            )
        self.prior = (IsotropicPrior() if prior is None else prior).fresh(self.batch_shape)
        self.reset_parameters()

    def extra_repr(self) -> str:
        options = {"sampling": self.sampling, "kl": self.kl, "damping": self.damping}
        usual = ("marginal", F.DAMPING)
        return super().extra_repr() + "".join(f", {k}={v}" for k, v in options.items() if v not in usual)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Start as the authors' code does: M ~ N(0, 4/(in + out)) with bias row 0, the bias row's scale at most e⁻⁴.

        The paper names He's scheme; 4/(in + out) is the authors' form of it. Rows and columns share ``initial_scale``.
        """
        if self.loc is not None:
            with torch.no_grad():
                self.loc.normal_(0, math.sqrt(4 / (self.in_features + self.out_features)), generator=generator)
                self.loc[..., self.in_features :, :] = 0
        half = 0.5 * math.log(self.initial_scale)
        log_row_scale = torch.full((self.n_rows,), half)
        log_row_scale[self.in_features :] = min(INITIAL_LOG_BIAS_SCALE, half)
        self.row.reset(log_row_scale, generator)
        self.column.reset(torch.full((self.out_features,), half), generator)
        if self.pseudo_data is not None:
            self.pseudo_data.reset(generator)

    @torch.no_grad()
    def start_at(self, weight: Tensor, bias: Tensor | None) -> None:
        """Let these weights [out, in] and biases [out] be the mean M and, with pseudo-data, the centre too."""
        if self.loc is None:
            return
        root = F.input_divisor(self.n_rows)
        self.loc[..., : self.in_features, :] = root * weight.mT
        if bias is not None:
            self.loc[..., self.in_features, :] = root * bias
        if self.pseudo_data is not None:  # B̃ = ÃM: the pseudo-data agree with the mean and leave it as it is
            points = self.pseudo_data.points
            points[..., self.n_rows :] = points[..., : self.n_rows] / root @ self.loc

    # -- the posterior as an object -----------------------------------------------------------------------------------

    @property
    def posterior(self) -> MatrixNormal:
        """q(W) = MN(M, U, V), before conditioning on the pseudo-data."""
        loc = self._loc()
        if loc is None:
            loc = at_least_float32(self.row.log_scale).new_zeros(*self.batch_shape, self.n_rows, self.out_features)
        return MatrixNormal(loc, self.row(), self.column(), validate_args=False)

    def posterior_given(self, inputs: Tensor | None = None, outputs: Tensor | None = None) -> MatrixNormal:
        """q(W | Ã, B̃) = MN(M_eff, U', V) at pseudo-data [..., P, R] and [..., P, C], their means where None.

        M_eff = M + UÃᵀΣ₁₁⁻¹(B̃ − ÃM) and U' = U − UÃᵀΣ₁₁⁻¹ÃU. In double precision, for U' may be nearly singular.
        """
        if self.pseudo_data is None:
            raise ValueError("posterior_given needs a layer with pseudo-data; got n_pseudo=0")
        A = (self.pseudo_data.inputs if inputs is None else inputs) / F.input_divisor(self.n_rows)
        B = self.pseudo_data.outputs if outputs is None else outputs
        A, B, M, U, V = _in_double(A, B, self.loc, self.row(), self.column())
        return MatrixNormal(F.fold_mean(M, U, A, B, self.damping), Conditioned(U, A, self.damping), V, False)

    def _loc(self) -> Tensor | None:
        return None if self.loc is None else at_least_float32(self.loc)

    def kl_divergence(self) -> Tensor:
        """KL of the posterior to the prior, with that of the prior's own precisions; [*batch_shape].

        ``kl="marginal"`` is the paper's KL(q(W) ‖ p(W)) + KL(q(Ã) ‖ p(Ã)) + KL(q(B̃) ‖ p(B̃)) [LW16, eq. 11]. The layer
        draws from q(W | Ã, B̃), so this KL does not penalise information in the pseudo-data: with them the objective is
        no bound, without them it is.

        ``kl="conditional"`` is KL(q(W | Ã, B̃) ‖ p(W)) at a draw of the pseudo-data, without bias for its mean. For any
        fixed Ã, B̃ the objective with it bounds the log evidence of the model p(y | W) p(W), so its mean over q(Ã) q(B̃)
        does too. The pseudo-data are part of the posterior and not of the model, so their noise has no prior and no KL;
        it can only loosen the bound. The draw need not be that of a forward pass.
        """
        if not self.uses_marginal_kl:
            assert self.pseudo_data is not None
            q = self.posterior_given(*self.pseudo_data.sample((), self.generator))
            kl = self.prior.kl_divergence(q.loc, q.row_covariance, q.column_covariance)
            return kl.to(self._wide_dtype())
        if self.is_diagonal:
            M, log_row, log_column, _, *log_noises = self.quantities()
            return self.kl_of_diagonal(M, log_row, log_column, *log_noises)
        kl = self.prior.kl_divergence(self._loc(), self.row(), self.column())
        return kl if self.pseudo_data is None else kl + self.pseudo_data.kl_divergence()

    def kl_of_diagonal(self, M: Any, log_row: Any, log_column: Any, log_noise: Any, log_point_noise: Any) -> Tensor:
        """The paper's divergence of a layer with diagonal covariances, from :meth:`quantities`."""
        kl = self.prior.kl_of_diagonal(M, log_row, log_column)
        if self.pseudo_data is None:
            return kl
        sizes = self.n_pseudo, self.n_rows, self.out_features
        return kl + pseudo_data_kl(log_noise, log_point_noise, sizes, self.pseudo_data.max_noise)

    @property
    def uses_marginal_kl(self) -> bool:
        """Whether the divergence is the paper's, which asks for no draw."""
        return self.kl == "marginal" or self.pseudo_data is None

    def predictive(self, x: Tensor) -> MatrixNormal:
        """The joint distribution of the outputs at all rows of x [..., B, in], given the mean pseudo-data."""
        x, q = self._augmented(x), self._at_mean_points()
        rows = x.to(q.loc.dtype)
        root = cholesky(q.row_covariance.gram(rows), name="predictive row covariance")
        V = q.column_covariance.to(x.dtype)
        return MatrixNormal((rows @ q.loc).to(x.dtype), Dense(root.to(x.dtype)), V, validate_args=False)

    def _at_mean_points(self) -> MatrixNormal:
        """q(W) given the mean pseudo-data, where there are any."""
        return self.posterior if self.pseudo_data is None else self.posterior_given()

    def kernel(self, x1: Tensor, x2: Tensor | None = None, *, full: bool = False) -> Tensor:
        """The GP's kernel K_in = x̂₁ U x̂₂ᵀ [..., n₁, n₂], or V ⊗ K_in with ``full=True`` [LW16, §2.3]."""
        K_in = self.row().gram(self._augmented(x1), self._augmented(x1 if x2 is None else x2))
        if not full:
            return K_in
        product = self.column().to_dense()[..., :, None, :, None] * K_in[..., None, :, None, :]
        return product.flatten(-4, -3).flatten(-2, -1)  # [..., C n₁, C n₂]

    def _augmented(self, x: Tensor) -> Tensor:
        return F.augment(self.check_finite(self.check_shape(x)), self.has_bias)

    # -- drawing outputs ----------------------------------------------------------------------------------------------

    def forward(self, x: Tensor) -> Tensor:
        """Draw outputs as every layer does.

        Tokens or positions, dimensions of x between the first and the last, share one weight matrix, whatever
        ``sampling`` says. Drawn one by one, their noise would average out in whatever pools them.
        """
        if self.drawn is None and self.sampling == "marginal" and x.dim() > 2 and not self.batch_shape:
            return self.apply_weight(x, self.sample_weight())
        return super().forward(x)

    def _draw_rows(self, x: Tensor) -> Tensor:
        if not (self.is_diagonal and self.sampling == "marginal"):
            return super()._draw_rows(x)
        x = x.expand(*self.batch_shape, *x.shape[-2:])
        if not torch.compiler.is_compiling() and library.available():
            from vmg.nn.fusing import fused_draw  # which imports this file

            if (drawn := fused_draw(self, x)) is not None:  # equal in distribution and gradient
                return drawn
        points = None if self.pseudo_data is None else self.draw_noise(*self.pseudo_data.points.shape)
        noises = points, self.draw_noise(*x.shape[:-1], self.out_features)
        return sample_diagonal(self.check_finite(x), self.quantities(), noises, self.damping)

    def quantities(self) -> tuple[Any, Any, Any, Any, Any, Any]:
        """M, log σ_r, log σ_c, the pseudo-points and the two logarithms of √α, moved back into their bounds."""
        scales = at_least_float32(self.row.log_scale), at_least_float32(self.column.log_scale)
        if self.pseudo_data is None:
            return self._loc(), *scales, None, None, None
        return self._loc(), *scales, at_least_float32(self.pseudo_data.points), *self.pseudo_data.bounded_noise()

    def _draw(self, x: Tensor) -> Tensor:
        """Outputs in any of the ways, for any family of covariances, at x̂ [..., B, R]."""
        if self.sampling == "weights":
            return x @ self.sample_weight()
        U, V, marginal = self.row(), self.column(), self.sampling == "marginal"
        noise_shape = (*self.batch_shape, x.shape[-2], self.out_features)
        if self.pseudo_data is None:
            draw = F.sample_marginal if marginal else F.sample_joint
            return draw(x, self._loc(), U, V, self.draw_noise(*noise_shape))
        A, B = self.pseudo_data.sample((), self.generator)
        parts = x, self._loc(), U, V, A / F.input_divisor(self.n_rows), B, self.draw_noise(*noise_shape)
        if needs_double(self.n_pseudo, self.n_rows, x.dtype):
            parts = _in_double(*parts)
        return F.sample_conditional(*parts, self.damping, joint=not marginal).to(x.dtype)

    def mean_weight(self) -> Tensor:
        """M_eff [*batch_shape, R, C] at the mean pseudo-data: the weights of the paper's mean network [LW16, §4.2].

        It is not E[W]: W is linear in the pseudo-outputs, but not in the pseudo-inputs, whose noise moves E[W].
        """
        return self._at_mean_points().loc.to(self._wide_dtype())

    def sample_weight(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Weight matrices W [*sample_shape, *batch_shape, R, C] from the posterior, each one a whole function."""
        q, dtype = self.posterior, self._wide_dtype()
        U, V = q.row_covariance, q.column_covariance
        W = q.transform_noise(self.draw_noise(*sample_shape, *self.batch_shape, self.n_rows, self.out_features))
        if self.pseudo_data is None:
            return W
        A, B = self.pseudo_data.sample(sample_shape, self.generator)
        parts = W, U, V, A / F.input_divisor(self.n_rows), B, self.draw_noise(*B.shape)
        if needs_double(self.n_pseudo, self.n_rows, dtype):
            parts = _in_double(*parts)
        return F.condition_weights(*parts, self.damping).to(dtype)

    def sample_prior_weight(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Weight matrices W [*sample_shape, *batch_shape, R, C] from the prior."""
        shape = (*sample_shape, *self.batch_shape, self.n_rows, self.out_features)
        return self.prior.sample(shape, self.generator).to(self.row.log_scale)


def _in_double(*parts: Any) -> Any:
    """Tensors and covariances in double precision; None where there is none."""
    return tuple(None if part is None else part.to(torch.float64) for part in parts)


def sample_diagonal(x: Tensor, parameters: Sequence[Any], noises: Sequence[Any], damping: float) -> Tensor:
    """Draw each row where U and V are diagonal [LW16, eq. 8], without its cancellation (:mod:`vmg.fused.passes`).

    The parameters, noises and damping are those of :class:`vmg.fused.stack.DiagonalDraw`.
    """
    _, log_row, log_column, points, *_ = parameters
    R, C, dtype = log_row.shape[-1], log_column.shape[-1], log_row.dtype
    if points is not None and needs_double(points.shape[-2], R, dtype):
        (x,), parameters, noises = _in_double(x), _in_double(*parameters), _in_double(*noises)
    (M, log_row, log_column, points, log_noise, log_point_noise), (point_noise, noise) = parameters, noises
    u, v = torch.exp(2 * log_row).unsqueeze(-2), log_column.exp().unsqueeze(-2)
    if x.shape[-1] < R:
        x = torch.cat([x, x.new_ones(*x.shape[:-1], 1)], dim=-1)
    x = x / math.sqrt(R)  # [LW16, §4]
    limits = torch.finfo(x.dtype)
    floor = ((x.square() @ u.mT) * (10 * limits.eps) + limits.tiny).detach()  # the rounding of σ₂₂, [..., B, 1]
    out: Tensor | float = 0.0
    variance: Tensor | float = 0.0
    if points is not None:
        if point_noise is not None and log_noise is not None:
            points = multiplicative_noise(points, noise_scale(log_noise, log_point_noise, R, C), point_noise)
        A, B = points[..., :R] / math.sqrt(R), points[..., R:]
        AU = A * u
        S = AU @ A.mT
        S.diagonal(dim1=-2, dim2=-1).add_(damping)
        gain = torch.cholesky_solve(AU @ x.mT, cholesky(S, name="Σ₁₁ = ÃUÃᵀ + σ²I"))  # G = Σ₁₁⁻¹σ₁₂
        x = x - gain.mT @ A  # the part of the input that pseudo-data do not explain
        out = gain.mT @ B
        variance = damping * gain.square().sum(-2).unsqueeze(-1)
    variance = variance + x.square() @ u.mT  # s, [..., B, 1]
    deviation = torch.maximum(variance, floor).sqrt()  # a variance at the floor passes no gradient
    return (out + (0.0 if M is None else x @ M) + deviation * (noise * v)).to(dtype)

"""The paper's own regression recipe, to the letter [LW16, §4.1, and the authors' released code]."""

from __future__ import annotations

import torch

from vmg.estimators.pseudo_data.base import Array
from vmg.estimators.pseudo_data.regressor import PseudoDataRegressor
from vmg.likelihoods import GaussianLikelihood, Likelihood
from vmg.priors import GammaPrior, Prior
from vmg.training import Schedule, constant

__all__ = ["PaperVMGRegressor"]


class PaperVMGRegressor(PseudoDataRegressor):
    """:class:`PseudoDataRegressor` as the paper trained it.

    Gamma(1, 0.5) priors on the weights' precisions and Gamma(6, 6) on the noise's in the target's own units, all
    Gamma posteriors learned by gradient; Adam at 1e-3 throughout; parameters averaged with decay 0.999.
    """

    _schedule: Schedule = staticmethod(constant)
    _initial_scale = 1.0

    def _n_network_outputs(self) -> int:
        return self.n_outputs_  # the noise is constant, whatever the estimator's default

    def _make_prior(self) -> Prior:
        return GammaPrior(1.0, 0.5, conjugate=False)

    def _make_likelihood(self, n_steps: int, units: Array) -> Likelihood:
        # τ of standardised targets is τ σ_y², so Gamma(6, 6) in y's units is Gamma(6, 6/σ_y²) here
        rate = torch.as_tensor(6.0 / units**2, dtype=torch.float32)
        return GaussianLikelihood(
            self.n_outputs_, concentration=6.0, rate=rate, conjugate=False, batch_shape=(len(units),)
        )

"""Likelihoods: how targets scatter around the network's output, and what is believed about that scatter.

Networks work in standardised units (targets with mean 0 and standard deviation 1), and so do these likelihoods. The
paper's Gamma(6, 6) prior on the precision in the target's own units is Gamma(6, 6/σ_y²) here.
"""

from vmg.likelihoods.base import CategoricalLikelihood, Likelihood
from vmg.likelihoods.gaussian import (
    FullCovarianceLikelihood,
    GaussianLikelihood,
    HeteroscedasticLikelihood,
    KnownNoiseLikelihood,
)

__all__ = [
    "CategoricalLikelihood",
    "FullCovarianceLikelihood",
    "GaussianLikelihood",
    "HeteroscedasticLikelihood",
    "KnownNoiseLikelihood",
    "Likelihood",
]

"""Likelihoods of one function, for output layers without a closed form: counts, amounts, shares, grades, bounds."""

from vmg.likelihoods.scalar.amounts import Gamma
from vmg.likelihoods.scalar.base import LikelihoodAt, ScalarLikelihood
from vmg.likelihoods.scalar.censored import Censored
from vmg.likelihoods.scalar.counts import NegativeBinomial, Poisson
from vmg.likelihoods.scalar.ordinal import Ordinal
from vmg.likelihoods.scalar.shares import Beta, Binomial

__all__ = [
    "SCALAR_LIKELIHOODS",
    "Beta",
    "Binomial",
    "Censored",
    "Gamma",
    "LikelihoodAt",
    "NegativeBinomial",
    "Ordinal",
    "Poisson",
    "ScalarLikelihood",
]

SCALAR_LIKELIHOODS: dict[str, type[ScalarLikelihood]] = {
    kind.name: kind for kind in (Beta, Binomial, Censored, Gamma, NegativeBinomial, Ordinal, Poisson)
}

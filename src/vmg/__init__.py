"""Neural networks that know what they do not know: matrix Gaussian posteriors sharpened by pseudo-data."""

from vmg import covariance, nn
from vmg.distributions import MatrixNormal
from vmg.estimators import VMGClassifier, VMGRegressor
from vmg.objective import ElboTerms, elbo

__version__ = "0.1.0"

__all__ = ["ElboTerms", "MatrixNormal", "VMGClassifier", "VMGRegressor", "covariance", "elbo", "nn"]

"""Every likelihood of one function, with parameters, targets that it may have and the points of its support."""

import numpy as np

from vmg.likelihoods.families import Beta, Binomial, Censored, NegativeBinomial, Ordinal, Poisson

ORDINAL = Ordinal((3.0, 4.0, 5.5, 8.0), (0.1, 0.4, 0.3, 0.2))

CASES = {
    "poisson": (Poisson(3.0, 60.0), np.zeros(0), np.array([0.0, 1.0, 4.0, 17.0])),
    "negative-binomial": (NegativeBinomial(3.0, 60.0), np.array([0.4]), np.array([0.0, 1.0, 4.0, 17.0])),
    "beta": (Beta(0.3), np.array([1.6]), np.array([0.02, 0.3, 0.6, 0.97])),
    "binomial": (Binomial(-0.4, 6), np.zeros(0), np.array([[0.0, 3.0], [2.0, 2.0], [3.0, 9.0], [1.0, 6.0]])),
    "ordinal": (ORDINAL, np.array(ORDINAL.start), np.array([0.0, 1.0, 2.0, 3.0])),
    "censored": (
        Censored(2.0, 3.0),
        np.array([-0.4]),
        np.array([[1.0, 1.0], [-np.inf, 2.5], [4.0, np.inf], [1.5, 3.5]]),
    ),
}

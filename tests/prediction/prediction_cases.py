"""Predictions of numbers of every kind, each of three rows."""

import numpy as np

from likelihoods.scalar_cases import CASES
from vmg.likelihoods.families import Binomial
from vmg.prediction import (
    AtomPrediction,
    GLMPrediction,
    MixturePrediction,
    Prediction,
    StudentPrediction,
    TransformedPrediction,
)
from vmg.prediction.transformed import LogTransform, Rectified

N = 3
LOC, NOISE = np.array([0.5, 1.0, 2.0]), np.array([0.5, 0.8, 0.3])
FACTOR = np.array([[0.3, -0.2, 0.6], [0.1, 0.7, 0.2]])  # of the function, [K, N]
SCALE = np.sqrt((FACTOR**2).sum(0))
EXTRA = np.array([[0.3], [0.8], [1.5]])  # deviation that wider predictions have in addition


class Known:
    """A factor that is known; a class, so that it pickles."""

    def __init__(self, factor):
        self.factor = factor

    def __call__(self):
        return self.factor


def student(c=1, df=4.0, scale=1.0, loc=LOC):
    columns = [np.repeat(part[:, None], c, 1) * np.linspace(1, 2, c) for part in (loc, scale * NOISE, SCALE)]
    factor = np.repeat(FACTOR[..., None], c, 2) * np.linspace(1, 2, c)
    return StudentPrediction(*columns, np.full(c, df), Known(factor), n_shared=1)


def draws(c=1, df=5.0):
    rng = np.random.default_rng(0)
    loc = rng.normal(size=(7, N, c))
    return Prediction(loc, rng.uniform(0.3, 1.5, (1, N, c)), np.full((1, 1, 1), df))


def glm(name, squeeze=True):
    likelihood, theta, _ = CASES[name]
    return GLMPrediction(LOC - 1, SCALE, likelihood, theta, Known(FACTOR[..., None]), squeeze)


def atom(value, rest):
    chance = GLMPrediction(LOC - 1, SCALE, Binomial(-0.4, 1), np.zeros(0), Known(FACTOR[..., None]))
    return AtomPrediction(value, chance, rest)


def mixture(whole):
    """The last two rows of a prediction as mixtures over rows of the same prediction."""
    parts = whole.take(np.array([0, 1, 2, 2, 0, 1]))
    return MixturePrediction(whole, parts, np.array([1, 2]), np.array([[0.2, 0.5, 0.3], [0.6, 0.4, 0.0]]))


KINDS = {
    "student": student,
    "two outputs": lambda: student(2),
    "lognormal": lambda: TransformedPrediction(student(), LogTransform(60.0)),
    "shifted lognormal": lambda: TransformedPrediction(student(2), LogTransform(900.0, 0.5)),
    "rectified": lambda: TransformedPrediction(student(), Rectified()),
    "rectified, rarely negative": lambda: TransformedPrediction(student(), Rectified(1e-5)),
    "draws": draws,
    "draws, two outputs": lambda: draws(2),
    "normal draws": lambda: draws(df=np.inf),
    "wider": lambda: student(2).widened(EXTRA),
    "wider lognormal": lambda: TransformedPrediction(student(), LogTransform(60.0)).widened(EXTRA),
    "wider mixture of amounts": lambda: mixture(TransformedPrediction(student(), Rectified())).widened(EXTRA),
    "an atom inside": lambda: atom(0.8, student()),
    "an atom at zero": lambda: atom(0.0, TransformedPrediction(student(), LogTransform(60.0))),
    "an atom of amounts": lambda: atom(0.0, TransformedPrediction(student(), Rectified())),
    "mixture of atoms": lambda: mixture(atom(0.0, TransformedPrediction(student(), LogTransform(60.0)))),
    "mixture": lambda: mixture(student()),
    "mixture, two outputs": lambda: mixture(student(2)),
    "mixture of lognormals": lambda: mixture(TransformedPrediction(student(scale=3.0), LogTransform(1e4))),
    "mixture of counts": lambda: mixture(glm("poisson")),
    "mixture of levels": lambda: mixture(glm("ordinal")),
    **{name: (lambda name=name: glm(name)) for name in CASES if name != "censored"},
}

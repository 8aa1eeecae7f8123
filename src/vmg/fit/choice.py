"""Targets: the likelihoods that their values allow, fits of them, and the choice between fits on held-out rows.

Small networks are fitted with every candidate, and judged by what they predicted for rows that they had not seen. The
best candidate alone is then fitted in full. A candidate is judged:

- by the log probability of a small interval around each target, which is a probability for every likelihood; a density
  would reward a spike on a value that many rows share, or on rounded numbers;
- by its continuous ranked probability score;
- by the errors of its mean, which may not be larger than those of a Student t by more than 2 %.

A value that many rows share, such as zero, is an *atom*: an ensemble of its own says how probable it is, and the
likelihood is that of all other rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vmg.fit.calibration import NORMAL_DEGREES
from vmg.fit.design import MIN_ROWS, FitSettings, Size, Standardiser, ordinary_rows
from vmg.fit.ensemble import HeldOutSample
from vmg.fit.gaussian import RegressionEnsemble, fit_regression
from vmg.fit.glm import ScalarEnsemble, fit_scalar
from vmg.likelihoods.families import LIKELIHOODS, LogNormal, scalar_likelihood
from vmg.likelihoods.scalar import HEADROOM, TargetKind, is_whole
from vmg.math.distributions import Array
from vmg.prediction import AtomPrediction, NumberPrediction, StudentPrediction, TransformedPrediction
from vmg.prediction.base import all_together
from vmg.prediction.transformed import LogTransform, Rectified, TargetTransform
from vmg.training import Callback, History

__all__ = [
    "FEWEST_ROWS",
    "LikelihoodChoice",
    "TargetFit",
    "TargetFitter",
    "TargetModel",
    "before_transform",
    "choose_target",
    "choose_transform",
]

FEWEST_ROWS = 40  # fewer rows cannot tell likelihoods apart
MARGIN = 1.0  # standard errors by which a candidate must beat simpler ones in one score; it may lose in none
ATOM_MARGIN = 2.0  # the same of one with an atom, which is two fits
MOST_ERROR = 1.02  # times the root mean square error of the Student t
LEAST_MASS = 1e-9  # of an interval around a target: one row decides nothing
INTERVAL = 0.01  # half width of that interval, in standard deviations of the target
THRESHOLDS = 40  # values at which distributions are compared for the ranked probability score

FEW_LEVELS = 10  # targets with at most so many different values are grades
ROWS_OF_LEVEL = 5  # on average, of grades
LARGE_COUNT = 30.0  # whole numbers whose median is above are amounts
NARROW_RATIO = 4.0  # of the 95th to the 5th percentile: amounts that vary less look alike on a logarithmic scale
ATOM_SHARE = 0.03  # of the rows, with one value
ATOM_ROWS = 10
# the largest networks that candidates are compared by, and that say how probable an atom is: one layer
SMALL_WIDTH, SMALL_MEMBERS, SMALL_STEPS, SMALL_PATIENCE = 50, 4, 100, 30
TRIAL_ROWS = 1_000


class LikelihoodChoice(NamedTuple):
    """The name of a likelihood, and why it was taken."""

    name: str
    reason: str


# -- the scale that an ensemble works on ------------------------------------------------------------------------------


def choose_transform(likelihood: str, y: Array, *, rectify: bool) -> TargetTransform | None:
    """The map from an unbounded scale to targets y; with ``rectify`` numbers that are never negative
    stay so, but for a probability of negative ones that falls with their number."""
    if likelihood == "lognormal":
        return LogTransform(HEADROOM * float(y.max() + LogNormal.shift(y)), LogNormal.shift(y))
    finite = y[np.isfinite(y)]
    if likelihood == "censored" and (finite > 0).all() and (y[:, 0] >= 0).all():
        return LogTransform(HEADROOM * float(finite.max()))
    if rectify and likelihood in ("student", "normal") and y.shape == (len(y),) and y.min() >= 0:
        return Rectified.after(len(y))
    return None


def before_transform(transform: TargetTransform | None, y: Array) -> Array:
    """Targets on the unbounded scale."""
    return y if transform is None or isinstance(transform, Rectified) else transform.inverse(y)


# -- one fit ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TargetModel:
    """A fitted likelihood in the target's own unit: ensemble, scaling of targets, transform, and the atom if any."""

    ensemble: RegressionEnsemble | ScalarEnsemble
    scaling: Standardiser
    transform: TargetTransform | None
    atom: float | None = None
    chance: ScalarEnsemble | None = None  # of the atom

    def in_units(self, prediction: NumberPrediction) -> NumberPrediction:
        """A prediction of the ensemble for targets in their own unit."""
        if isinstance(prediction, StudentPrediction):
            prediction = prediction.in_units(self.scaling.mean, self.scaling.scale, squeeze=True)
            return prediction if self.transform is None else TransformedPrediction(prediction, self.transform)
        return prediction

    def updated(self, x: Array, y: Array, weight: Array | None) -> TargetModel:
        """Condition on more rows x [N, D] in standard units with targets in their own unit."""
        chance, rest = self.chance, np.ones(len(y), dtype=np.bool_)
        if chance is not None:
            rest = y.reshape(len(y)) != self.atom
            chance = chance.updated(x, _trials(~rest), weight)
        values = before_transform(self.transform, y[rest])
        if isinstance(self.ensemble, RegressionEnsemble):
            targets = self.scaling.transform(values.reshape(-1, len(self.scaling.mean)))
        else:
            likelihood = self.ensemble.members.likelihood
            targets = likelihood.targets(values if likelihood.paired else values.reshape(len(values)))
            if np.isnan(targets).any():
                raise ValueError(f"y must be among the values of the first call for {likelihood.name}; got others")
        ensemble = self.ensemble
        if rest.any():
            ensemble = ensemble.updated(x[rest], targets, None if weight is None else weight[rest])
        return replace(self, ensemble=ensemble, chance=chance)


@dataclass(frozen=True)
class TargetFit:
    """A fit of one target: its model, history and held-out rows, with the likelihood and why it was taken."""

    likelihood: str
    model: TargetModel
    history: History
    n_outliers: int
    held_out: HeldOutSample | None  # with positions among all rows
    reason: str = "as asked"
    scores: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class TargetFitter:
    """How targets are fitted: ``size_of`` gives the size of a fit by its number of rows.

    ``rectify`` keeps amounts from being negative. ``scaling`` is that of targets where it is known before the fit.
    ``experts`` are those beside the networks.
    """

    size_of: Callable[[int], Size]
    seed: int
    input_noise: bool = True
    rectify: bool = False
    scaling: Standardiser | None = None
    experts: Sequence[str] = ()
    callbacks: Sequence[Callback] = ()

    def fit(self, name: str, x: Array, y: Array, weight: Array | None) -> TargetFit:
        """Fit the likelihood ``name`` to rows in standard units x [N, D] and targets y in their own unit."""
        kept, kind = ordinary_rows(y, name), LIKELIHOODS[name]
        x, y, weight = x[kept], y[kept], np.ones(int(kept.sum())) if weight is None else weight[kept]
        transform = choose_transform(name, y, rectify=self.rectify)
        values = before_transform(transform, y)
        settings = FitSettings(self.size_of(len(x)), self.seed, self.callbacks)
        if kind.closed_form:
            columns = values.reshape(len(x), -1)
            scaling = self.scaling or Standardiser.fit(columns, weight)
            degrees = NORMAL_DEGREES if name == "normal" else None
            options: dict[str, Any] = {"input_noise": self.input_noise, "degrees": degrees, "experts": self.experts}
            fitted = fit_regression(x, scaling.transform(columns), weight, settings, **options)
        else:
            values = values if kind.paired else values.reshape(len(x))
            likelihood = scalar_likelihood(name).for_targets(values, weight)
            scaling = Standardiser(np.zeros(1), np.ones(1))  # the likelihood knows that of its targets
            fitted = fit_scalar(x, likelihood.targets(values), likelihood, weight, settings)
        model, held = TargetModel(fitted.ensemble, scaling, transform), fitted.held_out
        if held is not None:
            held = HeldOutSample(np.flatnonzero(kept)[held.rows], model.in_units(held.predictions))
        return TargetFit(name, model, fitted.history, int((~kept).sum()), held)

    def small(self) -> TargetFitter:
        """One whose fits are short and of small networks without other experts."""

        def limited(n_rows: int) -> Size:
            size = self.size_of(n_rows)
            hidden, n_members = (min(size.hidden[0], SMALL_WIDTH),), min(size.n_members, SMALL_MEMBERS)
            steps, patience = min(size.plan.max_steps, SMALL_STEPS), min(size.plan.patience, SMALL_PATIENCE)
            return size.changed(hidden=hidden, n_members=n_members, max_steps=steps, patience=patience)

        return replace(self, size_of=limited, experts=(), callbacks=())


def _trials(here: NDArray[np.bool_]) -> Array:
    """One trial a row, and its success."""
    return np.stack([here.astype(np.float64), np.ones(len(here))], 1)


# -- the choice -------------------------------------------------------------------------------------------------------


def choose_target(x: Array, y: Array, weight: Array | None, fitter: TargetFitter) -> TargetFit:
    """Choose among the likelihoods that suit targets y [N] in their own unit, and fit the chosen one to all rows."""
    weight = np.ones(len(y)) if weight is None else weight
    usual = ordinary_rows(y, "lognormal" if y.min() >= 0 else "student")
    kind, atom = _kind_of(y[usual]), find_atom(y[usual])
    fitter = replace(fitter, rectify=True)
    said, chosen = f"the target is {kind.value}", Candidate("student")
    scores: dict[str, float] = {}
    chance = None
    if len(y) < max(FEWEST_ROWS, MIN_ROWS):
        said += f", and {len(y)} rows are too few to compare"
    else:
        suitable = [
            one.name
            for one in LIKELIHOODS.values()
            if kind in one.kinds and (one.closed_form or one.accepts(y[usual])) and one.name != "student"
        ]
        candidates = [chosen, *(Candidate(name) for name in suitable)]
        if atom is not None:
            rest = y[y != atom]
            positive = rest.min() > 0 and _kind_of(rest) is not TargetKind.NARROW
            candidates += [Candidate(name, atom) for name in ("student", "lognormal")[: 1 + positive]]
            chance = fitter.small().fit("binomial", x, _trials(y == atom), weight)
        if len(candidates) > 1:
            chosen, scores = _try(candidates, x, y, weight, fitter, chance)
    fitted = chosen.fit(x, y, weight, fitter, chance)
    if scores:
        listed = ", ".join(f"{name} {score:.3f}" for name, score in sorted(scores.items(), key=lambda item: -item[1]))
        said += f"; mean log probability of intervals around held-out targets: {listed}"
        if max(scores, key=scores.__getitem__) != str(chosen):
            said += ", where a higher one is not surely better or has larger errors"
    return replace(fitted, reason=said, scores=scores)


@dataclass(frozen=True)
class Candidate:
    """A likelihood of all rows, or of those that are not the atom."""

    likelihood: str
    atom: float | None = None

    def __str__(self) -> str:
        return self.likelihood if self.atom is None else f"{self.likelihood} beside {self.atom:g}"

    def fit(
        self, x: Array, y: Array, weight: Array, fitter: TargetFitter, chance: TargetFit | None = None
    ) -> TargetFit:
        """Fit it to rows x [N, D]; ``chance`` is a fit of the atom's probability, with positions among these rows."""
        if self.atom is None or chance is None:
            fit = fitter.fit(self.likelihood, x, y, weight)
            return _without_needless_bound(fit, y) if self.likelihood == "student" else fit
        here = y == self.atom
        apart, others = np.flatnonzero(here), np.flatnonzero(~here)
        fit = fitter.fit(self.likelihood, x[others], y[others], weight[others])
        assert isinstance(chance.model.ensemble, ScalarEnsemble)
        assert isinstance(fit.model.ensemble, RegressionEnsemble)
        model = replace(fit.model, atom=self.atom, chance=chance.model.ensemble)
        if chance.held_out is None or fit.held_out is None:
            return replace(fit, model=model, held_out=None)
        # members of the rest have seen no row with the atom: all of them are new
        known = _joined(fit.held_out.predictions, fit.model.in_units(fit.model.ensemble.predict(x[apart])))
        samples = chance.held_out, HeldOutSample(np.concatenate([others[fit.held_out.rows], apart]), known)
        rows = np.intersect1d(samples[0].rows, samples[1].rows)
        parts = (sample.at(rows) for sample in samples)
        return replace(fit, model=model, held_out=HeldOutSample(rows, AtomPrediction(self.atom, *parts)))


def _joined(first: Any, second: Any) -> Any:
    """Rows of two predictions of numbers, one after the other."""
    if isinstance(first, TransformedPrediction):
        return replace(first, base=_joined(first.base, second.base))
    names = ("loc", "noise_scale", "function_scale")
    parts = {name: np.concatenate([getattr(one, name) for one in (first, second)]) for name in names}
    return replace(first, **parts, factor=all_together(parts["function_scale"]))


def _try(
    candidates: Sequence[Candidate], x: Array, y: Array, weight: Array, fitter: TargetFitter, chance: TargetFit | None
) -> tuple[Candidate, dict[str, float]]:
    """Fit each candidate to some rows in short, and compare them on the rows that all of them have held out.

    Gives the best, and the score of each. The first candidate is the Student t.
    """
    some = np.sort(np.random.default_rng(fitter.seed).permutation(len(y))[:TRIAL_ROWS])
    x, y, weight = x[some], y[some], weight[some]
    if chance is not None and chance.held_out is not None:
        rows = np.intersect1d(chance.held_out.rows, some)
        chance = replace(chance, held_out=HeldOutSample(np.searchsorted(some, rows), chance.held_out.at(rows)))
    held_out = ((candidate, candidate.fit(x, y, weight, fitter.small(), chance).held_out) for candidate in candidates)
    samples = {candidate: sample for candidate, sample in held_out if sample is not None}
    best = candidates[0]
    if best not in samples or len(samples) == 1:
        return best, {}
    rows = reduce(np.intersect1d, [sample.rows for sample in samples.values()])
    y, share = y[rows], weight[rows] / weight[rows].sum()
    judged = {candidate: _judge(sample.at(rows), y) for candidate, sample in samples.items()}
    largest_error = MOST_ERROR**2 * (share @ judged[best][1])
    for candidate, (log_mass, squared_error, ranked) in judged.items():  # from simple to complex: each must be better
        gains = log_mass - judged[best][0], judged[best][2] - ranked  # than the best before it
        margin = MARGIN if candidate.atom is None else ATOM_MARGIN
        clearly = any(share @ gain > margin * float(gain.std()) / np.sqrt(len(gain)) for gain in gains)
        if clearly and min(share @ gain for gain in gains) > 0 and share @ squared_error <= largest_error:
            best = candidate
    return best, {str(candidate): float(share @ scores[0]) for candidate, scores in judged.items()}


def _without_needless_bound(fit: TargetFit, y: Array) -> TargetFit:
    """The fit of a Student t, without its bound at zero where that makes the means of held-out rows worse."""
    if fit.held_out is None or fit.model.transform is None:
        return fit
    plain, target = fit.held_out.predictions.base, y[fit.held_out.rows]
    bounded, free = (one.mean - target for one in (fit.held_out.predictions, plain))
    if bounded @ bounded <= MOST_ERROR**2 * (free @ free):
        return fit
    return replace(fit, model=replace(fit.model, transform=None), held_out=fit.held_out._replace(predictions=plain))


def _kind_of(y: Array) -> TargetKind:
    levels = np.unique(y)
    if 3 <= len(levels) <= FEW_LEVELS and len(y) >= ROWS_OF_LEVEL * len(levels):
        return TargetKind.GRADES
    if levels[0] < 0 or len(levels) < 3:
        return TargetKind.ANY
    if is_whole(levels) and float(np.median(y)) <= LARGE_COUNT:
        return TargetKind.COUNT
    if levels[0] > 0 and levels[-1] < 1:
        return TargetKind.FRACTION
    if levels[0] > 0:
        low, high = np.quantile(y, [0.05, 0.95])
        return TargetKind.NARROW if high <= NARROW_RATIO * low else TargetKind.POSITIVE
    return TargetKind.AMOUNT


def find_atom(y: Array) -> float | None:
    """The value that far more rows have than any other, and more than a few per cent; None where there is none.

    The least or the largest value, such as zero or a limit of what is measured, needs no more rows than the next.
    """
    values, counts = np.unique(y, return_counts=True)
    if len(values) <= FEW_LEVELS:
        return None
    most = int(counts.argmax())
    value, share = float(values[most]), counts[most] / len(y)
    stands_out = most in (0, len(values) - 1) or counts[most] >= 3 * np.partition(counts, -2)[-2]
    enough = counts[most] >= ATOM_ROWS and len(y) - counts[most] >= FEWEST_ROWS
    return value if share > ATOM_SHARE and stands_out and enough else None


def _judge(prediction: NumberPrediction, y: Array) -> tuple[Array, Array, Array]:
    """Scores of each row [n]: log probability of an interval around the target, squared error, ranked score.

    The last is the squared distance between distribution and target at thresholds, weighted by their spacing.
    """
    half, thresholds = half_width(y), np.quantile(y, (np.arange(THRESHOLDS) + 0.5) / THRESHOLDS)
    mass = prediction.cdf(y + half) - prediction.cdf(y - half)
    below = np.stack([prediction.cdf(np.full(len(y), value)) for value in thresholds])
    ranked = np.gradient(thresholds) @ (below - (y <= thresholds[:, None])) ** 2
    return np.log(np.maximum(mass, LEAST_MASS)), (y - prediction.mean) ** 2, ranked


def half_width(y: Array) -> float:
    """Half the width of the interval around a target: a hundredth of the spread, and no less than half a rounding."""
    values = np.unique(y)
    rounding = float(np.diff(values).min()) if 1 < len(values) < 0.5 * len(y) else 0.0
    return max(INTERVAL * float(y.std()), 0.5 * rounding, np.finfo(np.float64).tiny)

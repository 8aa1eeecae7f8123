"""Models of groups: estimators of their own from rows of their own, many at a time or one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vmg.estimators import TableClassifier, TableRegressor
from vmg.estimators.base import draw_seed
from vmg.fit.calibration import NORMAL_DEGREES
from vmg.fit.choice import (
    FEWEST_ROWS,
    LikelihoodChoice,
    TargetFitter,
    before_transform,
    choose_target,
    choose_transform,
)
from vmg.fit.design import MANY_ROWS, Size, Standardiser, TrainingPlan, ordinary_rows
from vmg.fit.gaussian import RegressionEnsemble, fit_regressions
from vmg.fit.trainer import FitRows
from vmg.likelihoods.families import LIKELIHOODS
from vmg.training import History

__all__ = [
    "FLEET_SIZE",
    "Estimator",
    "GroupTable",
    "assemble",
    "choose_group_likelihood",
    "fit_apart",
    "fit_together",
    "is_together",
]

Array = NDArray[np.float64]
Estimator = TableRegressor | TableClassifier

PILOT_GROUPS = 5  # the largest, which say whether the logarithm of the target is predicted better

FLEET_SIZE = Size((40,), ("relu", "tanh"), 6, TrainingPlan(max_steps=400, patience=20, refit_steps=10, rate=0.08))
"""Size of the model of a small group: fewer units and half the members of one that is fitted alone.

It was chosen on held-out training rows by ``lab/fleet_plans.py``.
"""


STUDENT = LikelihoodChoice("student", "groups are fitted together")


@dataclass(frozen=True)
class GroupTable:
    """Features [n, D] and targets [n] of one group, with its number, from which its random numbers come.

    ``likelihood`` is that of a group which is fitted with others.
    """

    number: int
    X: Array
    y: NDArray[Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    likelihood: LikelihoodChoice = STUDENT

    @property
    def own_seed(self) -> int:
        """Seed of this group alone."""
        return int(np.random.default_rng([self.seed, self.number]).integers(2**31 - 1))

    @property
    def fit_seed(self) -> int:
        """Seed that an estimator with ``random_state=own_seed`` draws for its fit."""
        return draw_seed(self.own_seed)


def choose_group_likelihood(tables: Sequence[GroupTable]) -> LikelihoodChoice:
    """The likelihood of groups that are fitted together: as asked, or "lognormal" where it is better than "student".

    The largest groups compare the two on held-out rows, as :func:`vmg.fit.choice.choose_target` does for one table, and
    the one that groups with most rows take is used. Where all groups are small, they are compared as one.
    """
    asked = tables[0].options.get("likelihood", "auto")
    if asked != "auto":
        return LikelihoodChoice(asked, "as asked")
    if any((table.y < 0).any() for table in tables):
        return STUDENT
    largest = sorted(tables, key=lambda table: -len(table.y))[:PILOT_GROUPS]
    pilots = [(table.X, table.y) for table in largest if len(table.y) >= FEWEST_ROWS]
    pilots = pilots or [(np.concatenate([t.X for t in tables]), np.concatenate([t.y for t in tables]))]
    fitter = TargetFitter(lambda n_rows: FLEET_SIZE, tables[0].seed)
    for_logarithm = 0
    for X, y in pilots:
        chosen = choose_target(Standardiser.fit(X).transform(X), y.astype(np.float64), None, fitter)
        for_logarithm += len(y) if chosen.likelihood == "lognormal" and chosen.model.atom is None else 0
    if 2 * for_logarithm <= sum(len(y) for _, y in pilots):
        return STUDENT
    return LikelihoodChoice("lognormal", "the logarithm of the target is predicted better in the largest groups")


def is_together(table: GroupTable) -> bool:
    """Whether a group is fitted with others: numbers, few rows, an output layer that is integrated out."""
    numbers = table.y.dtype.kind == "f"
    return numbers and len(table.y) < MANY_ROWS and LIKELIHOODS[table.likelihood.name].closed_form


def fit_apart(table: GroupTable, *, regression: bool) -> Estimator:
    """Fit one group on its own, as the estimator does: for classes, and for groups of many rows."""
    kind: type[Estimator] = TableRegressor if regression else TableClassifier
    return kind(**{**table.options, "random_state": table.own_seed}).fit(table.X, table.y, keep_rows=False)


def fit_together(tables: Sequence[GroupTable]) -> list[TableRegressor]:
    """Fit a regression to each group, all of them at once; one group alone gets what the estimator would fit."""
    wanted = TableRegressor(**{"learning_rate_init": FLEET_SIZE.plan.rate, **tables[0].options})
    likelihood, fits, units = tables[0].likelihood.name, [], []
    for table in tables:
        kept = ordinary_rows(table.y, likelihood)
        y = table.y[kept].astype(np.float64)
        transform = choose_transform(likelihood, y, rectify=wanted.likelihood == "auto")
        y = before_transform(transform, y)
        inputs, targets = Standardiser.fit(table.X), Standardiser.fit(y[:, None])
        fits.append(FitRows(inputs.transform(table.X[kept]), targets.transform(y[:, None]), None, table.fit_seed))
        units.append(
            {
                "input_scaling_": inputs,
                "target_scaling_": targets,
                "target_transform_": transform,
                "n_outliers_": int((~kept).sum()),
            }
        )
    fitted = fit_regressions(
        fits,
        size=wanted.adjusted(FLEET_SIZE),
        input_noise=wanted.noise == "auto",
        degrees=NORMAL_DEGREES if likelihood == "normal" else None,
    )
    return [
        assemble(table, one.ensemble, one.history, **unit)
        for table, unit, one in zip(tables, units, fitted, strict=True)
    ]


def assemble(table: GroupTable, ensemble: RegressionEnsemble, history: History, **units: Any) -> TableRegressor:
    """An estimator as ``fit`` would leave it, around an ensemble that was fitted otherwise; ``units`` of its rows."""
    estimator = TableRegressor(**{**table.options, "random_state": table.own_seed})
    last = [replace(record, seconds=0.0) for record in history.records[-1:]]  # so that files have the same bits again
    fitted: dict[str, Any] = {
        "seed_": table.fit_seed,
        "n_features_in_": table.X.shape[1],
        "inputs_": None,
        "n_outputs_": 1,
        "_single_output": True,
        "target_transform_": None,
        "atom_": None,
        "atom_chance_": None,
        "likelihood_": table.likelihood.name,
        "likelihood_reason_": table.likelihood.reason,
        "likelihood_scores_": {},
        "n_outliers_": 0,
        "ensemble_": ensemble,
        "history_": History(last, history.stopped, history.notes),
        "conformal_scores_": None,
        "conformal_groups_": None,
        **units,
    }
    for name, value in fitted.items():
        setattr(estimator, name, value)
    return estimator

"""Models of groups: estimators of their own from rows of their own, many at a time or one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vmg.estimators import TableClassifier, TableRegressor
from vmg.fit.calibration import Calibration, HeldOut, HeldOutPredictions, held_out_errors
from vmg.fit.design import InputRange, Size, Standardiser, TrainingPlan, squash
from vmg.fit.gaussian import RegressionEnsemble
from vmg.fit.noise import NoiseField, fit_noise_field
from vmg.scale.group_calibration import calibrate_groups
from vmg.scale.group_training import GroupRows, TrainedGroup, train_groups
from vmg.training import History, Progress

__all__ = ["FLEET_SIZE", "Estimator", "GroupTable", "assemble", "fit_apart", "fit_together"]

Array = NDArray[np.float64]
Estimator = TableRegressor | TableClassifier

FLEET_SIZE = Size((40,), ("relu", "tanh"), 6, TrainingPlan(max_steps=400, patience=20, refit_steps=10, rate=0.08))
"""Size of the model of a small group: fewer units and half the members of one that is fitted alone.

It was chosen on held-out training rows by ``lab/fleet_plans.py``.
"""


@dataclass(frozen=True)
class GroupTable:
    """Features [n, D] and targets [n] of one group, with its number, from which its random numbers come."""

    number: int
    X: Array
    y: NDArray[Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0

    @property
    def own_seed(self) -> int:
        """Seed of this group alone."""
        return int(np.random.default_rng([self.seed, self.number]).integers(2**31 - 1))


def fit_apart(table: GroupTable, kind: type[Estimator]) -> Estimator:
    """Fit one group on its own, as the estimator does: for classes, and for groups of many rows."""
    return kind(**{**table.options, "random_state": table.own_seed}).fit(table.X, table.y)


def fit_together(tables: Sequence[GroupTable]) -> list[TableRegressor]:
    """Fit a regression to each group, all of them at once."""
    wanted = TableRegressor(**{"learning_rate_init": FLEET_SIZE.plan.rate, **tables[0].options})
    size = wanted.adjusted(FLEET_SIZE)
    scalings = [(Standardiser.fit(table.X), Standardiser.fit(table.y[:, None])) for table in tables]
    groups = [
        GroupRows(
            squash(inputs.transform(table.X)),
            targets.transform(table.y[:, None])[:, 0].astype(np.float64),
            table.own_seed,
        )
        for table, (inputs, targets) in zip(tables, scalings, strict=True)
    ]
    trained = train_groups(
        groups, hidden=size.hidden, activations=size.activations, n_members=size.n_members, plan=size.plan
    )
    calibrated = _calibrated(groups, trained, input_noise=wanted.noise == "auto")
    found = []
    for table, group, one, said, scaling in zip(tables, groups, trained, calibrated, scalings, strict=True):
        calibration, noise_field = said
        noise = one.members.posterior().noise_variance.numpy() if one.held_out is None else one.held_out.noise
        ensemble = RegressionEnsemble(one.members, InputRange.of(group.x), noise, (calibration,), (noise_field,))
        found.append(assemble(table, ensemble, scaling, one.n_steps))
    return found


def _calibrated(
    groups: Sequence[GroupRows], trained: Sequence[TrainedGroup], *, input_noise: bool
) -> list[tuple[Calibration, NoiseField | None]]:
    """What the held-out rows of each group say; members' own noise where there were too few rows to hold any out."""
    found: dict[int, tuple[Calibration, NoiseField | None]] = {}
    folds: dict[int, tuple[HeldOut, NDArray[np.int64]]] = {}
    regions: list[HeldOut] = []
    least: list[float] = []
    for k, (group, one) in enumerate(zip(groups, trained, strict=True)):
        if one.held_out is None:
            posterior = one.members.posterior()
            degrees = max(3.0, float(posterior.t_degrees.mean()))
            found[k] = Calibration(float(posterior.noise_variance.mean()), 1.0, degrees), None
            continue
        rows = HeldOutPredictions.of(
            one.held_out.loc, one.held_out.variance, one.design, group.x, np.arange(len(group.y))
        )
        arguments = (rows, group.y, np.ones(len(group.y)), 0)
        folds[k] = held_out_errors(*arguments, regions=False)
        regions.append(held_out_errors(*arguments, regions=True)[0])
        least.append(float(one.held_out.noise.mean()))
    if folds:
        errors = [rows for rows, _ in folds.values()]
        for k, calibration in zip(folds, calibrate_groups(errors, regions, least), strict=True):
            fitted = _noise_field(groups[k], trained[k], *folds[k], calibration) if input_noise else None
            found[k] = calibration, fitted
    return [found[k] for k in range(len(groups))]


def _noise_field(
    group: GroupRows, one: TrainedGroup, rows: HeldOut, positions: NDArray[np.int64], calibration: Calibration
) -> NoiseField | None:
    """How the noise of a group depends on the input, where its held-out rows ask for that."""
    inputs = np.column_stack([group.x[positions], group.y[positions] - rows.error])
    scale = np.append(one.members.features.input_scale().numpy().astype(np.float64), 1.0)
    return fit_noise_field(inputs, rows, calibration, scale, np.random.default_rng(group.seed))


def assemble(
    table: GroupTable, ensemble: RegressionEnsemble, scaling: tuple[Standardiser, Standardiser], n_steps: int
) -> TableRegressor:
    """An estimator as ``fit`` would leave it, around an ensemble that was found otherwise."""
    estimator = TableRegressor(**{**table.options, "random_state": table.own_seed})
    progress = Progress(n_steps, n_steps, 0.0, 0.0, 0.0, 0.0, 0.0)
    fitted: dict[str, Any] = {
        "seed_": table.own_seed,
        "n_features_in_": table.X.shape[1],
        "n_outputs_": 1,
        "_single_output": True,
        "input_scaling_": scaling[0],
        "target_scaling_": scaling[1],
        "target_transform_": None,
        "likelihood_": "student",
        "likelihood_reason_": "groups are fitted together",
        "likelihood_scores_": {},
        "n_outliers_": 0,
        "ensemble_": ensemble,
        "history_": History([progress]),
        "conformal_scores_": None,
        "conformal_groups_": None,
    }
    for name, value in fitted.items():
        setattr(estimator, name, value)
    return estimator

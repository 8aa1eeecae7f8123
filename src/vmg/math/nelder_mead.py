"""Nelder and Mead's simplex search, for many small problems at once.

Every problem moves as it would alone, and as SciPy's ``minimize(method="Nelder-Mead")`` moves the same first simplex. A
round evaluates the points that all problems ask for together, so that many problems cost little more than one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["lowest", "nelder_mead"]

Array = NDArray[np.float64]


def nelder_mead(
    loss: Callable[[Array, NDArray[np.int64]], Array],
    start: Array,
    *,
    first_step: float,
    max_rounds: int,
    x_tolerance: float,
    loss_tolerance: float,
) -> tuple[Array, Array]:
    """Minimise K problems of D numbers from ``start`` [K, D]; the best points [K, D] and their losses [K].

    Args:
        loss: losses [k] of points [k, D], given the positions [k] of the problems that they belong to.
        first_step: sides of the first simplex. One that is smaller than the tolerances would end where it starts.
        x_tolerance, loss_tolerance: a problem ends when its simplex is as small in both.
    """
    n_problems, n_numbers = start.shape
    corners = first_step * np.eye(n_numbers + 1, n_numbers, -1)
    simplex = start[:, None] + corners  # [K, D + 1, D]
    everyone = np.repeat(np.arange(n_problems), n_numbers + 1)
    value = loss(simplex.reshape(-1, n_numbers), everyone).reshape(n_problems, -1)
    simplex, value = _sorted(simplex, value)
    moving = np.arange(n_problems)
    for _ in range(1, max_rounds):
        small = np.abs(simplex[moving, 1:] - simplex[moving, :1]).max((1, 2)) <= x_tolerance
        flat = np.abs(value[moving, :1] - value[moving, 1:]).max(1) <= loss_tolerance
        moving = moving[~(small & flat)]
        if not len(moving):
            break
        simplex[moving], value[moving] = _sorted(*_moved(loss, simplex[moving], value[moving], moving))
    return simplex[:, 0], value[:, 0]


def lowest(loss: Callable[[Array], float], starts: Array, **options: Any) -> Array:
    """The best point [D] of one problem from several ``starts`` [K, D]; options as in :func:`nelder_mead`."""
    points, losses = nelder_mead(lambda values, _: np.array([loss(one) for one in values]), starts, **options)
    return points[losses.argmin()]


def _sorted(simplex: Array, value: Array) -> tuple[Array, Array]:
    """The corners of each simplex, the best one first."""
    order = np.argsort(value, axis=1, kind="stable")
    return np.take_along_axis(simplex, order[..., None], 1), np.take_along_axis(value, order, 1)


def _moved(
    loss: Callable[[Array, NDArray[np.int64]], Array], simplex: Array, value: Array, problem: NDArray[np.int64]
) -> tuple[Array, Array]:
    """One round: reflect the worst corner, and expand, contract or shrink as the value there says."""
    centre, worst = simplex[:, :-1].sum(1) / simplex.shape[2], simplex[:, -1]
    reflected = 2 * centre - worst
    at_reflected = loss(reflected, problem)
    best, second_worst, at_worst = value[:, 0], value[:, -2], value[:, -1]
    expands = at_reflected < best
    contracts = ~expands & ~(at_reflected < second_worst)
    outside = contracts & (at_reflected < at_worst)
    second = np.where(expands[:, None], 3 * centre - 2 * worst, 0.5 * centre + 0.5 * worst)
    second[outside] = 1.5 * centre[outside] - 0.5 * worst[outside]
    at_second = np.full(len(problem), np.inf)
    asked = expands | contracts
    if asked.any():
        at_second[asked] = loss(second[asked], problem[asked])
    takes_second = (expands & (at_second < at_reflected)) | (outside & (at_second <= at_reflected))
    takes_second |= contracts & ~outside & (at_second < at_worst)
    shrinks = contracts & ~takes_second
    replaced = ~shrinks
    simplex[replaced, -1] = np.where(takes_second[:, None], second, reflected)[replaced]
    value[replaced, -1] = np.where(takes_second, at_second, at_reflected)[replaced]
    if shrinks.any():
        corners = simplex[shrinks]
        corners[:, 1:] = corners[:, :1] + 0.5 * (corners[:, 1:] - corners[:, :1])
        simplex[shrinks] = corners
        n_corners, n_numbers = corners.shape[1] - 1, corners.shape[2]
        asked_for = np.repeat(problem[shrinks], n_corners)
        value[shrinks, 1:] = loss(corners[:, 1:].reshape(-1, n_numbers), asked_for).reshape(-1, n_corners)
    return simplex, value

"""The simplex search of many problems, against SciPy's of each."""

import numpy as np
from scipy import optimize

from vmg.math.nelder_mead import nelder_mead


def test_every_problem_moves_as_scipy_moves_it():
    rng = np.random.default_rng(0)
    centres, starts = rng.normal(size=(20, 3)), rng.normal(size=(20, 3))
    starts[3] = 0.0
    asked = []

    def one(x, k):
        return (np.abs(x - centres[k]) ** 1.5).sum() + 0.5 * np.sin(3 * x[0]) + 0.1 * (x[1] * x[2]) ** 2

    def loss(points, problem):
        asked.append(len(points))
        return np.array([one(x, k) for x, k in zip(points, problem, strict=True)])

    points, losses = nelder_mead(loss, starts, first_step=0.3, max_rounds=300, x_tolerance=1e-3, loss_tolerance=1e-6)
    for k, start in enumerate(starts):
        corners = start + 0.3 * np.eye(4, 3, -1)
        options = {"maxiter": 300, "xatol": 1e-3, "fatol": 1e-6, "initial_simplex": corners}
        expected = optimize.minimize(lambda x, k=k: one(x, k), start, method="Nelder-Mead", options=options)
        np.testing.assert_allclose(points[k], expected.x, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(losses[k], expected.fun, rtol=1e-12)
    assert asked[0] == 80 and max(asked) <= 80 and min(asked) < 20  # problems that are done are asked no more


def test_rounds_are_limited():
    def loss(points, problem):
        return (points**2).sum(1)

    few, many = (
        nelder_mead(loss, np.full((1, 2), 3.0), first_step=0.1, max_rounds=n, x_tolerance=1e-9, loss_tolerance=1e-12)[
            1
        ][0]
        for n in (5, 200)
    )
    assert few > 0.1 and many < 1e-9

"""Sampling-free predictions of a fitted regressor against its draws."""

import numpy as np
import pytest

from quick import linear_table, regressor


@pytest.mark.parametrize("noise", ["constant", "input"])
@pytest.mark.parametrize("options", [{}, {"n_members": 3}, {"activation": "tanh"}], ids=["relu", "members", "tanh"])
def test_moments_are_those_of_many_draws(noise, options):
    X, y = linear_table()
    model = regressor(noise=noise, n_draws=2_000, max_noise=0.1, max_iter=150, **options).fit(X, y)
    drawn, propagated = model.pred_dist(X), model.pred_dist(X, method="moments")
    assert np.abs(propagated.mean - drawn.mean).max() < 0.1 * drawn.std.min()
    np.testing.assert_allclose(propagated.std, drawn.std, rtol=0.05)
    np.testing.assert_allclose(np.median(propagated.epistemic_std / drawn.epistemic_std), 1, atol=0.05)
    np.testing.assert_allclose(propagated.aleatoric_std, drawn.aleatoric_std, rtol=0.05)
    np.testing.assert_allclose(propagated.log_prob(y).mean(), drawn.log_prob(y).mean(), atol=0.05)
    width = np.diff(drawn.interval(0.9))
    assert (np.abs(propagated.interval(0.9) - drawn.interval(0.9)) < 0.1 * width).all()


def test_several_outputs():
    X, y = linear_table(n_outputs=2)
    model = regressor(noise="input", n_draws=2_000, max_noise=0.1).fit(X, y)
    drawn, propagated = model.pred_dist(X), model.pred_dist(X, method="moments")
    assert propagated.mean.shape == y.shape
    np.testing.assert_allclose(propagated.std, drawn.std, rtol=0.1)


def test_draws_are_the_default_and_no_other_method_is_known():
    X, y = linear_table()
    model = regressor().fit(X, y)
    np.testing.assert_array_equal(model.pred_dist(X).loc, model.pred_dist(X, method="draws").loc)
    with pytest.raises(ValueError, match="method must be 'draws' or 'moments'; got 'magic'"):
        model.pred_dist(X, method="magic")

"""Predictions as distributions of skpro."""

import numpy as np
import pytest

from quick import ensemble_regressor, linear_table

skpro = pytest.importorskip("skpro")


@pytest.mark.works_with("skpro", "`model.pred_dist(X).to_skpro()` is a distribution of skpro")
@pytest.mark.parametrize("likelihood", ["student", "lognormal", "poisson"])
def test_a_prediction_is_a_distribution_of_skpro(likelihood):
    from skpro.metrics import LogLoss

    X, y = linear_table(60)
    y = np.round(np.exp(y / 4)) if likelihood == "poisson" else np.exp(y / 4)
    prediction = ensemble_regressor(likelihood=likelihood).fit(X, y).pred_dist(X[:7])
    distribution = prediction.to_skpro()
    assert distribution.shape == (7, 1)
    np.testing.assert_allclose(distribution.mean().to_numpy()[:, 0], prediction.mean)
    np.testing.assert_allclose(distribution.var().to_numpy()[:, 0], prediction.var)
    np.testing.assert_allclose(distribution.quantile([0.1, 0.9]).to_numpy(), prediction.quantile([0.1, 0.9]), rtol=1e-9)
    median = distribution.ppf(0.5)
    np.testing.assert_allclose(distribution.cdf(median).to_numpy()[:, 0], prediction.cdf(prediction.median), rtol=1e-9)
    np.testing.assert_allclose(distribution.iloc[[2, 0]].mean().to_numpy()[:, 0], prediction.mean[[2, 0]])
    assert LogLoss()(median, distribution) == pytest.approx(-prediction.log_prob(prediction.median).mean())
    assert distribution.sample(5).shape == (35, 1)


def test_several_outputs_are_refused():
    X, Y = linear_table(40, n_outputs=2)
    with pytest.raises(ValueError, match="of one output; got 2"):
        ensemble_regressor().fit(X, Y).pred_dist(X[:3]).to_skpro()

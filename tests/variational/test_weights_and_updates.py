"""Weighted rows, and calls after the first fit."""

import numpy as np
import pytest

from quick import LINEAR, everything, linear_table, regressor
from vmg.nn import MLP
from vmg.training import TrainingError
from vmg.variational import VMGClassifier

# -- weights ----------------------------------------------------------------------------------------------------------


def test_a_weight_counts_rows():
    """Weights against repeated rows, both trained well: the same units, noise and, within its spread, the same mean."""
    X, y = linear_table(40)
    y[:20] += 1.5  # a half that disagrees with the other, so that weights matter
    counts = np.where(np.arange(40) < 20, 3, 1)
    options = {**LINEAR, "max_iter": 150, "n_draws": 400}
    weighted = regressor(**options).fit(X, y, counts)
    repeated = regressor(**options).fit(X.repeat(counts, 0), y.repeat(counts))
    ignored = regressor(**options).fit(X, y)
    np.testing.assert_allclose(weighted.target_scaling_.scale, repeated.target_scaling_.scale)
    np.testing.assert_allclose(weighted.target_scaling_.mean, repeated.target_scaling_.mean)
    concentration = [m.likelihood_.posterior.concentration.item() for m in (weighted, repeated)]
    np.testing.assert_allclose(concentration, 1 + 80 / 2, rtol=1e-4)
    p, q, r = (m.pred_dist(X) for m in (weighted, repeated, ignored))
    assert abs(p.mean - q.mean).max() < 0.15
    assert abs(r.mean - q.mean).mean() > 0.25
    np.testing.assert_allclose(p.aleatoric_std, q.aleatoric_std, rtol=0.1)
    np.testing.assert_allclose(p.epistemic_std, q.epistemic_std, rtol=0.35)


def test_equal_weights_of_one_change_nothing():
    X, y = linear_table(20)
    plain, weighted = regressor(max_iter=10).fit(X, y), regressor(max_iter=10).fit(X, y, np.ones(20))
    np.testing.assert_allclose(everything(weighted, X), everything(plain, X), rtol=1e-4)


# -- calls after the first -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change", [{"n_members": 2}, {"hidden_layer_sizes": (5,)}, {"noise": "input"}, {"row_covariance": "dense"}], ids=str
)
def test_updates_go_on_with_the_network_of_the_fit(change):
    X, y = linear_table(20)
    model = regressor(max_iter=1).fit(X, y)
    before = everything(model, X)
    with pytest.raises(ValueError, match=rf"goes on with the network of the fit; \['{next(iter(change))}'\] must be"):
        model.set_params(**change).partial_fit(X, y)
    np.testing.assert_array_equal(everything(model, X), before)
    model.set_params(hidden_layer_sizes=[8], n_members=1, noise="constant", row_covariance="diagonal")
    model.set_params(max_iter=2, learning_rate_init=0.01).partial_fit(X, y)


def test_a_network_that_training_left_without_numbers_is_no_fit():
    X, y = linear_table(30)
    options = {"hidden_layer_sizes": (2,), "n_pseudo": 1, "max_noise": 0.25, "n_draws": 5, "n_members": 2}
    model = VMGClassifier(
        **options, max_iter=1, column_covariance="dense", learning_rate_init=1e6, activation="silu", random_state=0
    )
    with pytest.raises(TrainingError, match="try a smaller learning_rate_init than 1e"):
        model.fit(X[:, :1], y > 0)
    assert not hasattr(model, "network_")


def test_many_rows_are_predicted_in_pieces_that_do_not_show(monkeypatch):
    X, y = linear_table(20)
    model = regressor(max_iter=1, n_members=2).fit(X, y)

    def predicted():
        mean, std = model.predict(X, return_std=True)
        return mean, model.predict(X), std, model.predict_interval(X, 0.8), model.predict_quantiles(X, [0.1, 0.6, 0.7])

    whole = predicted()
    monkeypatch.setattr("vmg.prediction.base.ROWS_AT_ONCE", 7)
    asked, sample_functions = set(), MLP.sample_functions

    def draw(self, *arguments, **options):
        functions = sample_functions(self, *arguments, **options)
        return lambda x: asked.add(x.shape[-2]) or functions(x)

    monkeypatch.setattr(MLP, "sample_functions", draw)
    for one, other in zip(predicted(), whole, strict=True):
        assert one.shape == other.shape
        np.testing.assert_allclose(one, other, rtol=1e-9)
    assert asked == {7, 6}

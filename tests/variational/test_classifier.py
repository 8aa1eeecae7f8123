import numpy as np
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.metrics import log_loss

from quick import class_table, classifier

LINEAR = {"hidden_layer_sizes": (), "n_pseudo": 0, "max_iter": 100}  # learns the blobs well
NAMES = np.array(["no", "perhaps", "yes"])


@pytest.fixture(scope="module")
def fitted():
    X, y = class_table()
    return classifier().fit(X, y)


# -- learning and predicting ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"n_members": 3}], ids=str)
def test_learns_three_classes(options):
    X, y = class_table()
    X_new, y_new = class_table(200, seed=1)
    model = classifier(**LINEAR, **options).fit(X, y)
    assert model.score(X_new, y_new) > 0.95
    assert model.pred_dist(X_new).log_prob(y_new).mean() > -0.25


def test_the_ways_to_predict_agree(fitted):
    X, y = class_table(9, seed=1)
    p = fitted.pred_dist(X)
    np.testing.assert_array_equal(fitted.classes_, NAMES)
    assert p.samples.shape == (50, 9, 3)
    np.testing.assert_allclose(p.samples.sum(-1), 1)
    np.testing.assert_array_equal(fitted.predict_proba(X), p.probabilities)
    np.testing.assert_array_equal(fitted.predict(X), p.label)
    np.testing.assert_array_equal(fitted.predict(X), NAMES[fitted.predict_proba(X).argmax(1)])
    assert p.log_prob(y).mean() == pytest.approx(-log_loss(y, p.probabilities))
    assert fitted.score(X, y) == (fitted.predict(X) == y).mean()


def test_uncertainty_is_where_it_should_be():
    X, y = class_table()
    model = classifier(**LINEAR).fit(X, y)
    known, between = model.pred_dist(X), model.pred_dist(np.zeros((1, 2)))
    assert between.predictive_entropy[0] > 2 * known.predictive_entropy.mean()
    p = model.pred_dist(np.concatenate([X, 10 * X]))
    np.testing.assert_allclose(p.mutual_information + p.expected_entropy, p.predictive_entropy, atol=1e-12)


def test_ensembles_pool_their_members():
    X, y = class_table(30)
    model = classifier(n_members=3, max_iter=5).fit(X, y)
    p = model.pred_dist(X)
    assert p.samples.shape == (150, 30, 3)
    members = p.samples.reshape(50, 3, 30, 3).mean(0)
    np.testing.assert_allclose(members.mean(0), p.probabilities)
    assert (members.std(0) > 0).all()


def test_probabilities_can_be_calibrated_by_scikit_learn():
    X, y = class_table(30)
    calibrated = CalibratedClassifierCV(classifier(max_iter=5), cv=2).fit(X, y)
    np.testing.assert_allclose(calibrated.predict_proba(X).sum(1), 1)


# -- weights ----------------------------------------------------------------------------------------------------------


def test_a_weight_counts_rows():
    """Everywhere the same input, so that the weighted shares of the classes are the answer."""
    X, y = np.zeros((40, 1)), np.arange(40) % 2
    weight = np.where(y == 1, 3, 1)
    options = {**LINEAR, "max_iter": 150, "n_draws": 400}
    weighted = classifier(**options).fit(X, y, weight)
    repeated = classifier(**options).fit(X.repeat(weight, 0), y.repeat(weight))
    for model, share in ((weighted, 0.75), (repeated, 0.75), (classifier(**options).fit(X, y), 0.5)):
        assert model.predict_proba(X)[0, 1] == pytest.approx(share, abs=0.05)

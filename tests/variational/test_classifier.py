import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

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


def test_as_many_members_as_rows():
    X, y = class_table(3)
    model = classifier(n_members=3, max_iter=2).fit(X, y, np.ones(3))
    assert model.predict_proba(X).shape == (3, 3)


@pytest.mark.parametrize(
    "labels", [[3, 1, 2], [0.0, 1.0, 2.0], ["b", "a", "c"], [True, False, True], [-5, 0, 10**12]], ids=str
)
def test_any_labels(labels):
    X, y = class_table(30)
    names = np.array(labels)
    model = classifier(**LINEAR).fit(X, names[np.searchsorted(NAMES, y)])
    np.testing.assert_array_equal(model.classes_, np.unique(labels))
    assert model.predict(X).dtype == names.dtype
    assert model.predict_proba(X).shape == (30, len(model.classes_))
    assert model.score(X, names[np.searchsorted(NAMES, y)]) > 0.9


def test_labels_have_no_order():
    """The same rows under names that sort the same give the same bits."""
    X, y = class_table(30)
    coded = np.searchsorted(NAMES, y) * 10
    first, second = classifier(max_iter=5).fit(X, y), classifier(max_iter=5).fit(X, coded)
    np.testing.assert_array_equal(first.predict_proba(X), second.predict_proba(X))
    np.testing.assert_array_equal(np.searchsorted(NAMES, first.predict(X)) * 10, second.predict(X))


# -- randomness -------------------------------------------------------------------------------------------------------


def test_same_seed_same_bits(fitted):
    X, y = class_table()
    again, other = classifier().fit(X, y), classifier(random_state=1).fit(X, y)
    np.testing.assert_array_equal(again.predict_proba(X), fitted.predict_proba(X))
    assert (other.predict_proba(X) != fitted.predict_proba(X)).all()
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(fitted)).predict_proba(X), fitted.predict_proba(X))


# -- scikit-learn's tools, frames, types ------------------------------------------------------------------------------


def test_tools():
    X, y = class_table(30)
    search = GridSearchCV(
        make_pipeline(StandardScaler(), classifier(max_iter=5)),
        {"vmgclassifier__n_pseudo": [0, 2]},
        cv=2,
        scoring="neg_log_loss",
        error_score="raise",
    ).fit(X, y)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert set(search.predict(X)) <= set(NAMES)
    calibrated = CalibratedClassifierCV(classifier(max_iter=5), cv=2).fit(X, y)
    np.testing.assert_allclose(calibrated.predict_proba(X).sum(1), 1)
    assert clone(classifier(n_draws=7)).n_draws == 7


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (["no"] * 30, "at least 2 classes; got one class"),
        (np.linspace(0, 1, 30), "[Uu]nknown label type"),
        (np.full(30, np.nan), "NaN"),
        (["no"] * 29, "inconsistent numbers of samples"),
        (np.zeros((30, 2)), "y should be a 1d array"),
    ],
)
def test_mistakes_in_the_classes(y, message):
    X, _ = class_table(30)
    with pytest.raises(ValueError, match=message):
        classifier(max_iter=1).fit(X, y)


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


# -- stopping early ---------------------------------------------------------------------------------------------------


def test_early_stopping():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(40, 5)), rng.integers(2, size=40)  # nothing to learn
    model = classifier(early_stopping=True, max_iter=200, n_iter_no_change=3, validation_fraction=0.3).fit(X, y)
    assert model.history_.stopped.startswith("stopped by a callback")
    assert model.n_iter_ < 200


# -- announced classes ------------------------------------------------------------------------------------------------


def test_classes_announced_up_front():
    X, y = class_table(30)
    known = y != "yes"
    model = classifier().partial_fit(X[known], y[known], classes=["yes", "no", "perhaps"])
    np.testing.assert_array_equal(model.classes_, NAMES)
    assert model.predict_proba(X).shape == (30, 3)
    assert (model.predict(X[known]) == y[known]).mean() > 0.9
    before = model.predict_proba(X[~known])[:, 2].mean()
    model.partial_fit(X, y, classes=NAMES)
    assert model.predict_proba(X[~known])[:, 2].mean() > before


def test_classes_that_were_not_announced():
    X, y = class_table(30)
    with pytest.raises(ValueError, match=r"y must be among the classes .*got \['yes'\]"):
        classifier(max_iter=1).partial_fit(X, y, classes=["no", "perhaps"])
    model = classifier(max_iter=1).partial_fit(X[y != "yes"], y[y != "yes"])
    with pytest.raises(ValueError, match=r"y must be among the classes .*got \['yes'\]"):
        model.partial_fit(X, y)
    with pytest.raises(ValueError, match="classes must be those of the first call"):
        model.partial_fit(X[y != "yes"], y[y != "yes"], classes=NAMES)


def test_an_announcement_holds_for_one_model_only():
    """Neither a failed call nor a later one may leave classes behind for the next fit."""
    X, y = class_table(30)
    two = y != "yes"
    model = classifier(max_iter=1)
    with pytest.raises(ValueError, match="NaN"):
        model.partial_fit(np.full_like(X, np.nan), y, classes=NAMES)
    np.testing.assert_array_equal(model.fit(X[two], y[two]).classes_, ["no", "perhaps"])
    model = classifier(max_iter=1).partial_fit(X, y, classes=NAMES).partial_fit(X, y, classes=NAMES)
    np.testing.assert_array_equal(model.fit(X[two], y[two]).classes_, ["no", "perhaps"])

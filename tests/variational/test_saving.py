import numpy as np
import pytest
import torch
from sklearn.exceptions import NotFittedError

import vmg
from quick import functions
from vmg import ModelFileError
from vmg.model_file import read, write
from vmg.priors import FixedPrior
from vmg.variational import VMGClassifier, VMGRegressor

TINY = {"hidden_layer_sizes": (4,), "n_pseudo": 2, "max_iter": 2, "n_draws": 8, "random_state": 0}


@pytest.fixture
def X(rng):
    return rng.normal(size=(24, 3))


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def round_trip(model, tmp_path):
    path = tmp_path / "model.vmg"
    model.save(path)
    loaded = vmg.load(path)
    assert type(loaded) is type(model)
    return loaded


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"n_members": 3, "hidden_layer_sizes": [4, 5], "n_pseudo": [2, 0, 3]},
        {"row_covariance": "rank_one", "column_covariance": "dense", "pseudo_noise": "factored"},
        {"zero_mean": True, "prior": "isotropic", "activation": "cos"},
        {"noise": "input"},
        {"early_stopping": True, "averaging": None, "batch_size": 8},
        {
            "hidden_layer_sizes": np.int64(4),
            "learning_rate_init": np.float64(0.01),
            "noise_prior": np.array([6.0, 6.0]),
        },
    ],
    ids=["default", "ensemble", "families", "zero mean", "input noise", "early stopping", "numpy parameters"],
)
def test_a_regressor_predicts_the_same_bits(X, rng, tmp_path, options):
    y = rng.normal(size=24)
    model = VMGRegressor(**{**TINY, **options}).fit(X, y)
    loaded = round_trip(model, tmp_path)
    before, after = model.pred_dist(X), loaded.pred_dist(X)
    for part in ("loc", "scale", "df"):
        assert np.array_equal(getattr(before, part), getattr(after, part))
    assert vars(loaded).keys() == vars(model).keys()
    assert loaded.history_ == model.history_
    assert loaded.n_iter_ == model.n_iter_ and loaded.seed_ == model.seed_


def test_several_outputs_and_calibration(X, rng, tmp_path):
    Y = rng.normal(size=(24, 2))
    model = VMGRegressor(**TINY).fit(X, Y).conformalize(X, Y)
    loaded = round_trip(model, tmp_path)
    assert np.array_equal(model.predict_interval(X), loaded.predict_interval(X))
    assert loaded.n_outputs_ == 2


@pytest.mark.parametrize(
    "classes",
    [["red", "green", "blå"], [3, 1, 2], [1.0, 2.0], [True, False], np.array(["a", "b"], dtype=object)],
    ids=["texts", "integers", "floats", "booleans", "objects"],
)
def test_classes_keep_their_values_and_type(X, tmp_path, classes):
    y = np.asarray(classes)[np.arange(24) % len(classes)]
    model = VMGClassifier(**TINY).fit(X, y)
    loaded = round_trip(model, tmp_path)
    assert loaded.classes_.dtype == model.classes_.dtype
    assert np.array_equal(loaded.classes_, model.classes_)
    assert np.array_equal(loaded.predict_proba(X), model.predict_proba(X))
    assert np.array_equal(loaded.predict(X), model.predict(X))


@pytest.mark.parametrize("estimator", [VMGRegressor, VMGClassifier])
def test_online_updates_continue_as_if_nothing_had_happened(X, tmp_path, estimator):
    y = (X[:, 0] > 0).astype(int)
    model = estimator(**TINY).fit(X, y)
    for _ in range(2):  # the second time with the fixed priors of the first update
        loaded = round_trip(model, tmp_path)
        model.partial_fit(X, y)
        loaded.partial_fit(X, y)
        assert np.array_equal(functions(model, X), functions(loaded, X))
    assert isinstance(round_trip(model, tmp_path).network_.layers[0].prior, FixedPrior)


def test_parameters_changed_after_the_fit_do_not_change_the_network(X, tmp_path):
    model = VMGRegressor(**TINY).fit(X, X[:, 0])
    expected = model.predict(X)
    model.set_params(hidden_layer_sizes=(9,), activation="tanh", max_noise=0.1, n_members=2)
    loaded = round_trip(model, tmp_path)
    assert np.array_equal(loaded.predict(X), expected)
    assert loaded.get_params() == model.get_params()


def test_what_cannot_be_saved_is_said(X, tmp_path):
    path = tmp_path / "model.vmg"
    with pytest.raises(NotFittedError):
        VMGRegressor().save(path)
    own = VMGRegressor(**{**TINY, "activation": torch.sin}).fit(X, X[:, 0])
    with pytest.raises(ModelFileError, match=r"activation of type .* cannot be saved; code is never saved"):
        own.save(path)
    state = VMGRegressor(**{**TINY, "random_state": np.random.RandomState(0)}).fit(X, X[:, 0])
    with pytest.raises(ModelFileError, match=r"random_state=.*set_params\(random_state=None\)"):
        state.save(path)
    state.set_params(random_state=None).save(path)

    class Mine(VMGRegressor):
        pass

    with pytest.raises(ModelFileError, match=r"only TableClassifier and .* can be saved; got Mine"):
        Mine(**TINY).fit(X, X[:, 0]).save(path)
    odd = VMGRegressor(**TINY).fit(X, X[:, 0])
    odd.extra_ = object()
    with pytest.raises(ModelFileError, match="extra_ of type object cannot be saved"):
        odd.save(path)


def test_a_valid_file_that_does_not_hold_a_whole_model(X, tmp_path):
    path = tmp_path / "model.vmg"
    VMGRegressor(**TINY).fit(X, X[:, 0]).save(path)
    tensors, document = read(path)
    del tensors["network_.layers.0.loc"]
    write(path, tensors, document)
    with pytest.raises(ModelFileError, match="does not describe a whole model"):
        vmg.load(path)
    write(path, {}, {"holds": "os.system"})
    with pytest.raises(ModelFileError, match="does not describe a whole model"):
        vmg.load(path)

"""Model files of all four estimators: the same bits again, and what cannot be saved or loaded."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.base import is_classifier
from sklearn.exceptions import NotFittedError

import vmg
from quick import (
    assert_same_bits,
    class_table,
    classifier,
    ensemble_classifier,
    ensemble_regressor,
    linear_table,
    regressor,
)
from vmg import ModelFileError, VMGRegressor
from vmg.model_file import read, write
from vmg.priors import FixedPrior

FILES = Path(__file__).parents[1] / "data_files"
classes_only = pytest.mark.parametrize("make", [classifier, ensemble_classifier], ids=["VMG", "Table"])
numbers_only = pytest.mark.parametrize("make", [regressor, ensemble_regressor], ids=["VMG", "Table"])


def round_trip(model, folder):
    model.save(folder / "model.vmg")
    loaded = vmg.load(folder / "model.vmg")
    assert type(loaded) is type(model)
    assert loaded.get_params() == model.get_params()
    assert vars(loaded).keys() == vars(model).keys()
    assert loaded.history_ == model.history_ and loaded.n_iter_ == model.n_iter_ and loaded.seed_ == model.seed_
    return loaded


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (regressor, {}),
        (regressor, {"n_members": 3, "hidden_layer_sizes": (4, 5), "n_pseudo": (2, 0, 3)}),
        (regressor, {"row_covariance": "rank_one", "column_covariance": "dense", "pseudo_noise": "factored"}),
        (regressor, {"zero_mean": True, "prior": "isotropic", "activation": "cos"}),
        (regressor, {"noise": "input"}),
        (regressor, {"early_stopping": True, "averaging": None, "batch_size": 8}),
        (regressor, {"hidden_layer_sizes": np.int64(4), "learning_rate_init": np.float64(0.01)}),
        (ensemble_regressor, {}),
        (ensemble_regressor, {"n_members": 1}),
        (ensemble_regressor, {"hidden_layer_sizes": (5, 4), "activation": "tanh"}),
        (ensemble_regressor, {"hidden_layer_sizes": np.int64(4), "noise": "constant"}),
    ],
    ids=lambda given: ",".join(given) if isinstance(given, dict) else given.__name__,
)
def test_a_regressor_predicts_the_same_bits(make, options, tmp_path):
    X, y = linear_table()
    model = make(max_iter=5, **options).fit(X, y)
    assert_same_bits(round_trip(model, tmp_path), model, X)


def test_an_array_of_numbers_is_a_parameter(tmp_path):
    X, y = linear_table()
    model = regressor(max_iter=2, noise_prior=np.array([6.0, 6.0])).fit(X, y)
    model.save(tmp_path / "model.vmg")
    assert_same_bits(vmg.load(tmp_path / "model.vmg"), model, X)


def test_noise_that_depends_on_the_input_is_kept(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (300, 1))
    y = X[:, 0] + np.exp(X[:, 0]) * rng.normal(size=300)
    model = ensemble_regressor(max_iter=100).fit(X, y)
    assert model.ensemble_.fields[0] is not None
    assert_same_bits(round_trip(model, tmp_path), model, X)


@numbers_only
def test_several_outputs_and_calibration(make, tmp_path):
    X, Y = linear_table(n_outputs=2)
    model = make(max_iter=5).fit(X, Y).conformalize(X, Y)
    loaded = round_trip(model, tmp_path)
    assert_same_bits(loaded, model, X)
    assert loaded.n_outputs_ == 2


def test_more_columns_than_rows_predict_the_same_bits(tmp_path):
    X, y = linear_table(n=40, n_features=230)
    model = ensemble_regressor().fit(X, y)
    assert model.ensemble_.members.features.n_directions == 40
    assert_same_bits(round_trip(model, tmp_path), model, X)


@classes_only
@pytest.mark.parametrize(
    "classes",
    [["red", "green", "blå"], [3, 1, 2], [1.0, 2.0], [True, False], np.array(["a", "b"], dtype=object)],
    ids=["texts", "integers", "floats", "booleans", "objects"],
)
def test_classes_keep_their_values_and_type(make, classes, tmp_path):
    X, _ = class_table()
    model = make(max_iter=3, n_members=1, n_draws=3).fit(X, np.asarray(classes)[np.arange(len(X)) % len(classes)])
    loaded = round_trip(model, tmp_path)
    assert loaded.classes_.dtype == model.classes_.dtype
    np.testing.assert_array_equal(loaded.classes_, model.classes_)
    np.testing.assert_array_equal(loaded.pred_dist(X).samples, model.pred_dist(X).samples)
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))


@pytest.mark.parametrize("make", [regressor, classifier, ensemble_regressor, ensemble_classifier])
def test_updates_go_on_as_if_nothing_had_happened(make, tmp_path):
    X, y = class_table() if is_classifier(make()) else linear_table()
    model = make(max_iter=3).fit(X[:40], y[:40])
    for _ in range(2):  # the second time with what the first update left, as the fixed priors of layers
        loaded = round_trip(model, tmp_path)
        for one in (model, loaded):
            one.partial_fit(X[40:], y[40:])
        assert np.array_equal(model.predict(X), loaded.predict(X))
    if make in (regressor, classifier):
        assert isinstance(round_trip(model, tmp_path).network_.layers[0].prior, FixedPrior)


@classes_only
def test_a_classifier_that_began_with_partial_fit_can_be_saved(make, tmp_path):
    X, y = class_table(30)
    model = make().partial_fit(X, y, classes=["no", "perhaps", "yes"])
    np.testing.assert_array_equal(round_trip(model, tmp_path).predict_proba(X), model.predict_proba(X))


def test_loading_leaves_the_random_numbers_of_the_caller_alone(tmp_path):
    X, y = linear_table(30)
    ensemble_regressor().fit(X, y).save(tmp_path / "model.vmg")
    torch.manual_seed(1)
    expected = torch.rand(())
    torch.manual_seed(1)
    vmg.load(tmp_path / "model.vmg")
    assert torch.rand(()) == expected


def test_parameters_changed_after_the_fit_do_not_change_the_network(tmp_path):
    X, y = linear_table()
    model = regressor(max_iter=2).fit(X, y)
    expected = model.predict(X)
    model.set_params(hidden_layer_sizes=(9,), activation="tanh", max_noise=0.1, n_members=2)
    assert np.array_equal(round_trip(model, tmp_path).predict(X), expected)


def test_what_cannot_be_saved_is_said(tmp_path):
    (X, y), path = linear_table(30), tmp_path / "model.vmg"
    with pytest.raises(NotFittedError):
        VMGRegressor().save(path)
    own = regressor(max_iter=2, activation=torch.sin).fit(X, y)
    with pytest.raises(ModelFileError, match=r"activation of type .* cannot be saved; code is never saved"):
        own.save(path)
    state = regressor(max_iter=2, random_state=np.random.RandomState(0)).fit(X, y)
    with pytest.raises(ModelFileError, match=r"random_state=.*set_params\(random_state=None\)"):
        state.save(path)
    state.set_params(random_state=None).save(path)

    class Mine(VMGRegressor):
        pass

    with pytest.raises(ModelFileError, match=r"only TableClassifier and .* can be saved; got Mine"):
        Mine(**regressor(max_iter=2).get_params()).fit(X, y).save(path)
    odd = regressor(max_iter=2).fit(X, y)
    odd.extra_ = object()
    with pytest.raises(ModelFileError, match="extra_ of type object cannot be saved"):
        odd.save(path)


def test_a_valid_file_that_does_not_hold_a_whole_model(tmp_path):
    path = tmp_path / "model.vmg"
    regressor(max_iter=2).fit(*linear_table(30)).save(path)
    tensors, document = read(path)
    del tensors["network_.layers.0.loc"]
    for contents in ((tensors, document), ({}, {"holds": "os.system"})):
        write(path, *contents)
        with pytest.raises(ModelFileError, match="does not describe a whole model"):
            vmg.load(path)


def test_a_file_of_an_earlier_format_is_refused_in_one_line():
    with pytest.raises(ModelFileError, match=r"written before vmg 0\.1\.0 .* fit the model again$"):
        vmg.load(FILES / "earlier_format.vmg")


def test_memory_does_not_grow_with_the_square_of_the_columns():
    """80 rows of 3,000 columns took more than two gigabytes."""
    code = """
import resource
import numpy as np
from vmg import TableRegressor
x = np.random.default_rng(0).normal(size=(80, 3000))
TableRegressor(random_state=0, max_iter=2).fit(x, x[:, 0]).predict_interval(x[:5])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 1.2e6  # kilobytes

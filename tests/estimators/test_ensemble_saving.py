"""Model files of the estimators whose output layer is integrated out, and files from before there were any."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import vmg
from quick import class_table, classifier, ensemble_classifier, ensemble_regressor, everything, linear_table
from vmg import ModelFileError

FILES = Path(__file__).parents[1] / "data_files"


def round_trip(model, folder):
    model.save(folder / "model.vmg")
    loaded = vmg.load(folder / "model.vmg")
    assert type(loaded) is type(model)
    assert loaded.get_params() == model.get_params()
    assert vars(loaded).keys() == vars(model).keys()
    assert loaded.history_ == model.history_
    return loaded


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"n_members": 1},
        {"hidden_layer_sizes": (5, 4), "activation": "tanh"},
        {"hidden_layer_sizes": np.int64(4), "learning_rate_init": np.float64(0.01), "noise": "constant"},
    ],
    ids=["default", "one network", "two layers", "numpy parameters"],
)
def test_a_regressor_predicts_the_same_bits(tmp_path, options):
    X, y = linear_table()
    model = ensemble_regressor(**options).fit(X, y)
    assert np.array_equal(everything(round_trip(model, tmp_path), X), everything(model, X))


def test_noise_that_depends_on_the_input_is_kept(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (300, 1))
    y = X[:, 0] + np.exp(X[:, 0]) * rng.normal(size=300)
    model = ensemble_regressor(max_iter=100).fit(X, y)
    assert model.ensemble_.fields[0] is not None
    assert np.array_equal(everything(round_trip(model, tmp_path), X), everything(model, X))


def test_several_outputs_and_calibration(tmp_path):
    X, Y = linear_table(n_outputs=2)
    model = ensemble_regressor().fit(X, Y).conformalize(X, Y)
    assert np.array_equal(everything(round_trip(model, tmp_path), X), everything(model, X))


@pytest.mark.parametrize("options", [{}, {"n_members": 1, "n_draws": 3}])
def test_a_classifier_predicts_the_same_bits(tmp_path, options):
    X, y = class_table()
    model = ensemble_classifier(**options).fit(X, y)
    loaded = round_trip(model, tmp_path)
    assert np.array_equal(loaded.pred_dist(X).samples, model.pred_dist(X).samples)
    assert loaded.classes_.dtype == model.classes_.dtype and np.array_equal(loaded.classes_, model.classes_)


@pytest.mark.parametrize("kind", ["regressor", "classifier"])
def test_updates_go_on_as_if_nothing_had_happened(tmp_path, kind):
    X, y = linear_table() if kind == "regressor" else class_table()
    model = (ensemble_regressor if kind == "regressor" else ensemble_classifier)().fit(X[:40], y[:40])
    loaded = round_trip(model, tmp_path)
    for one in (model, loaded):
        one.partial_fit(X[40:], y[40:])
    assert np.array_equal(model.predict(X), loaded.predict(X))


def test_loading_leaves_the_random_numbers_of_the_caller_alone(tmp_path):
    X, y = linear_table(30)
    ensemble_regressor().fit(X, y).save(tmp_path / "model.vmg")
    torch.manual_seed(1)
    expected = torch.rand(())
    torch.manual_seed(1)
    vmg.load(tmp_path / "model.vmg")
    assert torch.rand(()) == expected


@pytest.mark.parametrize("make", [ensemble_classifier, classifier])
def test_a_classifier_that_began_with_partial_fit_can_be_saved(make, tmp_path):
    X, y = class_table(30)
    model = make().partial_fit(X, y, classes=["no", "perhaps", "yes"])
    model.save(tmp_path / "model.vmg")
    np.testing.assert_array_equal(vmg.load(tmp_path / "model.vmg").predict_proba(X), model.predict_proba(X))


def test_a_file_of_an_earlier_format_is_refused_in_one_line():
    with pytest.raises(ModelFileError, match=r"written before vmg 0\.1\.0 .* fit the model again$"):
        vmg.load(FILES / "earlier_format.vmg")


def test_more_columns_than_rows_predict_the_same_bits(tmp_path):
    X, y = linear_table(n=40, n_features=230)
    model = ensemble_regressor().fit(X, y)
    assert model.ensemble_.members.features.n_directions == 40
    loaded = round_trip(model, tmp_path)
    np.testing.assert_array_equal(loaded.predict_interval(X), model.predict_interval(X))


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

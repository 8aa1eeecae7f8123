"""How many files a reader goes through: a training step, a prediction, ``vmg fit``, the paper's objective."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import vmg
from vmg import TableRegressor
from vmg.cli.app import run
from vmg.fit.design import FitRows, TrainingPlan
from vmg.fit.gaussian import RegressionMembers
from vmg.fit.trainer import MemberRun
from vmg.fused import library
from vmg.likelihoods import CategoricalLikelihood
from vmg.nn import MatrixGaussianLinear
from vmg.nn.bayesian import SHARDED

SOURCE = Path(vmg.__file__).parent


def files_entered(action):
    """Files of the library whose functions run during ``action``."""
    found = set()

    def note(frame, event, argument):
        path = Path(frame.f_code.co_filename)
        if frame.f_code.co_name == "__sklearn_tags__":  # asked for by scikit-learn's checks; nothing is computed there
            return
        if event == "call" and SOURCE in path.parents:
            found.add(str(path.relative_to(SOURCE)))

    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
    return found


def test_one_training_step_is_read_in_five_files():
    rng = np.random.default_rng(0)
    rows = FitRows.of(rng.normal(size=(30, 2)), rng.normal(size=(30, 1)), None, 4, 0)
    members = RegressionMembers(2, (5,), ("relu", "tanh"), 4)
    run = MemberRun(members, rows, TrainingPlan(), ())
    entered = files_entered(lambda: run.step(0.03))
    assert {"fit/trainer.py", "nn/anchored.py", "math/evidence.py"} <= entered
    assert len(entered) <= 5, sorted(entered)


def test_predict_interval_is_read_in_eight_files():
    """``nn/anchored.py``, whose matrices are taken once, is counted.

    Noise that depends on the input, where held-out rows ask for it, is one more: ``fit/noise.py``. So are experts
    beside the networks: ``fit/stacking.py`` and one for each.
    """
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    model = TableRegressor(n_members=4, max_iter=10, experts="networks", random_state=0).fit(X, X[:, 0])
    model.predict(X)  # the posterior of the output layers is now known
    entered = files_entered(lambda: model.predict_interval(X))
    assert {
        "estimators/regressor.py",
        "fit/gaussian.py",
        "nn/anchored.py",
        "prediction/base.py",
        "prediction/student.py",
    } <= entered
    assert len((entered | {"nn/anchored.py"}) - {"fit/noise.py"}) <= 8, sorted(entered)


def test_the_command_fit_is_read_in_few_files(tmp_path):
    """Reading the table, scores of held-out rows beside other methods, the fit, and the model's file; 40 are asked."""
    rng = np.random.default_rng(0)
    rows = [f"{a:.3f},{rng.choice(['x', 'y'])},{2 * a + rng.normal():.3f}" for a in rng.normal(size=40)]
    (tmp_path / "t.csv").write_text("\n".join(["a,b,y", *rows]))
    command = [
        "fit",
        str(tmp_path / "t.csv"),
        "--target",
        "y",
        "--members",
        "2",
        "--max-iter",
        "10",
        "--quiet",
        "--out",
    ]
    assert run([*command, str(tmp_path / "first.vmg")]) == 0  # all is imported now
    entered = files_entered(lambda: run([*command, str(tmp_path / "second.vmg")]))
    assert {"tables/files.py", "tables/encoder.py", "fit/trainer.py", "review/holdout.py", "model_file.py"} <= entered
    assert len(entered) <= 40, sorted(entered)


@pytest.mark.parametrize(("n_pseudo", "most"), [(0, 6), (2, 6)])
def test_one_objective_of_the_papers_layer_is_read_in_few_files(n_pseudo, most, monkeypatch):
    """``vmg.elbo`` and its backward pass in plain PyTorch; pseudo-data add their parameters and their mathematics."""
    monkeypatch.setattr(library, "available", lambda: False)  # as with VMG_NATIVE=0
    layer, likelihood = MatrixGaussianLinear(3, 2, n_pseudo=n_pseudo), CategoricalLikelihood()
    x, y = torch.randn(10, 3), torch.randint(2, (10,))
    monkeypatch.delitem(sys.modules, SHARDED, raising=False)  # loaded by other tests of the same process
    elbo = vmg.elbo  # loaded when first asked for
    entered = files_entered(lambda: (-elbo(layer, likelihood, x, y, n_data=10).total).backward())
    assert {"objective.py", "nn/matrix_gaussian.py", "priors.py"} <= entered
    assert not any(path.startswith("fused/") or path == "nn/fusing.py" for path in entered)
    assert len(entered) <= most, sorted(entered)

"""How many files a reader goes through to follow one training step, and one prediction, of the default."""

import sys
from pathlib import Path

import numpy as np
import torch

import vmg
from vmg import TableRegressor
from vmg.fit.design import TrainingPlan
from vmg.fit.gaussian import RegressionMembers
from vmg.fit.members import Batch
from vmg.fit.trainer import MemberRun

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
    x, y, weight = torch.randn(1, 30, 2), torch.randn(1, 30, 1), torch.ones(4, 1, 30)
    members = RegressionMembers(2, (5,), 1, ("relu", "tanh"), 4)
    batch = Batch(x, y, weight, weight, weight)
    run = MemberRun(members, batch, TrainingPlan(), torch.Generator(), ())
    entered = files_entered(lambda: run.step(0.03))
    assert {"fit/trainer.py", "nn/anchored.py", "math/evidence.py"} <= entered
    assert len(entered) <= 5, sorted(entered)


def test_predict_interval_is_read_in_eight_files():
    """``nn/anchored.py``, whose matrices are taken once, is counted.

    Noise that depends on the input, where held-out rows ask for it, is one more: ``fit/noise.py``.
    """
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    model = TableRegressor(n_members=4, max_iter=10, random_state=0).fit(X, X[:, 0])
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

"""How many files a reader goes through to follow one training step, and one prediction, of the default."""

import sys
from pathlib import Path

import numpy as np
import torch

import vmg
from vmg import VMGRegressor
from vmg.fit.members import TrainingPlan, _Rows, _Run
from vmg.fit.regression_members import RegressionMembers

SOURCE = Path(vmg.__file__).parent


def files_entered(action):
    """Files of the library whose functions run during ``action``."""
    found = set()

    def note(frame, event, argument):
        path = Path(frame.f_code.co_filename)
        if event == "call" and SOURCE in path.parents:
            found.add(str(path.relative_to(SOURCE)))

    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
    return found


def test_one_training_step_is_read_in_five_files_and_a_guard():
    x, y, weight = torch.randn(30, 2), torch.randn(30, 1), torch.ones(4, 30)
    members = RegressionMembers(2, (5,), 1, ("relu", "tanh"), 4)
    run = _Run(members, _Rows(x, y, weight, weight), TrainingPlan(), torch.Generator(), ())
    entered = files_entered(lambda: run.step(weight, 0.03))
    assert entered == {
        "fit/members.py",
        "fit/regression_members.py",
        "nn/anchored.py",
        "math/evidence.py",
        "math/linalg.py",
        "math/tracing.py",  # whether values may be looked at
    }


def test_one_prediction_is_read_in_nine_files():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    model = VMGRegressor(n_members=4, max_iter=10, random_state=0).fit(X, X[:, 0])
    model.predict(X)  # the posterior of the output layers is now known
    entered = files_entered(lambda: model.pred_dist(X).interval(0.9))
    assert entered <= {
        "estimators/reading.py",
        "estimators/regressor.py",
        "fit/scaling.py",
        "fit/regression.py",
        "fit/inputs.py",
        "fit/noise_field.py",
        "nn/anchored.py",
        "math/evidence.py",
        "prediction/student.py",
    }

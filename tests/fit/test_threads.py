"""Threads by the size of the work, with nothing left changed."""

from threading import Event, Thread

import numpy as np
import pytest
import torch
from threadpoolctl import ThreadpoolController

from vmg import TableClassifier, TableRegressor, VMGClassifier, VMGRegressor
from vmg.fit.design import WORK_OF_A_THREAD, threads_for, use_threads
from vmg.nn.mlp import MLP

FAST = {"n_members": 4, "hidden_layer_sizes": 10, "max_iter": 20, "random_state": 0}


BLAS = ThreadpoolController().select(user_api="blas")


@pytest.fixture(autouse=True)
def three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    with BLAS.limit(limits=3):
        yield
        assert blas_threads() == {3}
    torch.set_num_threads(before)


def blas_threads():
    """Numbers of threads of NumPy's and SciPy's BLAS."""
    return {library["num_threads"] for library in BLAS.info()}


def rows(n=60):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 3))
    return X, np.exp(X[:, 0] + 0.1 * rng.normal(size=n))


@pytest.mark.parametrize(
    ("model", "target"),
    [
        (TableRegressor(**FAST), lambda y: y),
        (TableRegressor(likelihood="poisson", **FAST), np.round),
        (TableClassifier(**FAST), lambda y: (y > 1).astype(int)),
    ],
    ids=["numbers", "counts", "classes"],
)
def test_a_small_fit_and_its_predictions_take_one_thread(model, target, monkeypatch):
    X, y = rows()
    during, of_blas = [], set()
    look = [lambda progress: during.append(torch.get_num_threads()), lambda progress: of_blas.update(blas_threads())]
    model.fit(X, target(y), callbacks=look)
    assert set(during) == {1} and torch.get_num_threads() == 3
    assert of_blas == {1} and blas_threads() == {3}
    forward = type(model.ensemble_.members.features).layers

    def noted(self):
        during.append(torch.get_num_threads())
        return forward(self)

    monkeypatch.setattr(type(model.ensemble_.members.features), "layers", noted)
    during.clear()
    model.ensemble_.__dict__.pop("functions", None)
    model.predict(X)
    assert set(during) == {1} and torch.get_num_threads() == 3


@pytest.mark.parametrize("kind", [VMGRegressor, VMGClassifier])
def test_networks_with_pseudo_data_take_one_thread_for_small_work(kind, monkeypatch):
    """In training, in the scores of trials and in predictions."""
    X, y = rows()
    during, draw = [], MLP.sample_functions

    def noted(self, *arguments, **keywords):
        during.append(torch.get_num_threads())
        return draw(self, *arguments, **keywords)

    monkeypatch.setattr(MLP, "sample_functions", noted)
    look = [lambda progress: during.append(torch.get_num_threads())]
    model = kind((10,), max_iter=2, random_state=0).fit(X, (y > 1).astype(int), callbacks=look)
    of_fit = len(during)
    model.predict(X)
    assert len(during) > of_fit > 2 and set(during) == {1}
    assert torch.get_num_threads() == 3 and blas_threads() == {3}


def test_an_error_leaves_the_number_as_it_was():
    def stop(progress):
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        TableRegressor(**FAST).fit(*rows(), callbacks=[stop])
    assert torch.get_num_threads() == 3


def test_one_seed_is_one_model_whatever_the_number_of_threads():
    X, y = rows()
    said = []
    for n_threads in (1, 2, 3):
        torch.set_num_threads(n_threads)
        said.append(TableRegressor(random_state=0, max_iter=30).fit(X, y).predict_interval(X))
    np.testing.assert_array_equal(said[1], said[0])
    np.testing.assert_array_equal(said[2], said[0])


@pytest.mark.parametrize(("work", "expected"), [(0, 1), (1.9, 1), (2.0, 2), (3.0, 3), (1e6, 3)])
def test_threads_grow_with_the_work_up_to_those_that_are_set(work, expected):
    with threads_for(work * WORK_OF_A_THREAD):
        assert torch.get_num_threads() == expected
        with threads_for(1e30):
            assert torch.get_num_threads() == expected  # never more than around it
    assert torch.get_num_threads() == 3


def test_python_threads_that_overlap_leave_no_trace():
    """One that starts inside a block of another begins with its number, and ends last."""
    inside, leave, after = Event(), Event(), []

    def late():
        with use_threads(1):
            inside.set()
            leave.wait(10)

    def look():
        after.append(torch.get_num_threads())

    with use_threads(1):
        other = Thread(target=late)
        other.start()
        inside.wait(10)
    leave.set()
    other.join()
    new = Thread(target=look)
    new.start()
    new.join()
    assert after == [3] and torch.get_num_threads() == 3

"""How long networks train when nobody says, and when they stop."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from small_fits import small_fitter, small_rows

from quick import class_table, classifier, linear_table, regressor
from vmg.variational import VMGClassifier, VMGRegressor
from vmg.variational.fitter import (
    LONG,
    QUICK,
    QUICK_NUMBERS,
    STANDARD,
    VALIDATION_DRAWS,
    BestSoFar,
    Budget,
    EarlyStopping,
    Fitter,
)
from vmg_paper.baselines import Graves


def test_steps_and_batches_grow_between_their_limits():
    rows = (1, 100, 1_000, 10_000, 40_000, 1_000_000)
    assert [STANDARD.steps(n) for n in rows] == [12_000, 12_000, 12_000, 12_000, 20_000, 20_000]
    assert [LONG.steps(n) for n in rows] == [30_000, 30_000, 30_000, 30_000, 40_000, 40_000]
    assert LONG.steps(30_625) == 35_000
    assert [STANDARD.batch_size(n) for n in rows] == [32, 32, 32, 128, 256, 256]
    assert [LONG.batch_size(n) for n in rows] == [32, 32, 32, 64, 256, 256]
    assert [QUICK.steps(n) for n in rows] == [2_000, 2_000, 2_000, 5_000, 10_000, 10_000]
    assert [QUICK_NUMBERS.batch_size(n) for n in rows] == [32, 32, 256, 256, 256, 256]
    for budget in (STANDARD, LONG, QUICK):
        for grown in (budget.steps, budget.batch_size):
            found = [grown(n) for n in range(1, 100_000, 777)]
            assert found == sorted(found)


@pytest.fixture
def budgets(monkeypatch):
    """The budget of every run; each takes one step."""
    seen, train = [], Fitter.train

    def spy(self, sets, choices):
        seen.append(self.budget)
        return train(replace(self, most_steps=1), sets, choices)

    monkeypatch.setattr(Fitter, "train", spy)
    return seen


@pytest.mark.parametrize(
    ("kind", "options", "budget"),
    [
        (VMGRegressor, {}, QUICK_NUMBERS),
        (VMGRegressor, {"n_members": 5}, LONG),
        (VMGRegressor, {"n_pseudo": 0}, STANDARD),
        (VMGClassifier, {}, QUICK),
        (VMGClassifier, {"n_members": 5}, STANDARD),
        (VMGClassifier, {"n_pseudo": (0, 0)}, STANDARD),
        (Graves().regressor, {"n_members": 5}, STANDARD),
    ],
)
def test_a_single_network_with_pseudo_data_trains_shortest_and_so_do_its_trials(budgets, kind, options, budget):
    """A trial is a single network, but stands for members of the ensemble."""
    table = class_table(40) if kind is VMGClassifier else linear_table(40)
    model = kind((4,), random_state=0, **options).fit(*table)
    searched = kind in (VMGRegressor, VMGClassifier) and "n_pseudo" not in options
    assert budgets == [*([replace(budget, batches=budget.trial_batches)] if searched else []), budget]
    assert model.learning_rate_init == 0.01


def test_automatic_sizes_are_those_of_the_budget():
    fitter = small_fitter(batch_size=None, n_epochs=None, budget=Budget(7, 7, batches=1))
    [fitted] = fitter.fit([small_rows(50)])
    assert (fitted.history.last.step, fitted.n_epochs) == (7, 7)  # one batch of 32 rows an epoch


SCORES = (-3.0, -2.0, -2.5, -1.0, -1.0, -0.95, -4.0, -4.0)


@pytest.fixture
def seen(monkeypatch):
    """Held-out rows get prescribed scores; the network's state and the number of rows at every check."""
    checks, true = [], Fitter.held_out_log_probs

    def scripted(self, network, likelihood, held_out, n_draws):
        [found] = true(self, network, likelihood, held_out, n_draws)
        checks.append((copy.deepcopy(network.state_dict()), len(found)))
        return [np.full_like(found, SCORES[len(checks) - 1])]

    monkeypatch.setattr(Fitter, "held_out_log_probs", scripted)
    return checks


def same(network, state):
    return all(torch.equal(value, state[name]) for name, value in network.state_dict().items())


@pytest.mark.parametrize("n_members", [1, 2])
@pytest.mark.parametrize(("tol", "best", "n_checks"), [(0.0, 5, 8), (0.1, 3, 6)])
def test_it_stops_and_restores_the_best(seen, n_members, tol, best, n_checks):
    """Two checks in a row without an improvement by ``tol`` end it; what a later check would say is never heard."""
    rule = EarlyStopping(fraction=0.3, patience=2, tol=tol)
    [fitted] = small_fitter(n_members=n_members, early_stopping=rule).fit([small_rows(30)])
    assert len(seen) == n_checks
    assert fitted.history.stopped == f"stopped by a callback at step {n_checks}"
    assert fitted.n_epochs == n_checks
    assert same(fitted.network, seen[best][0]) and not same(fitted.network, seen[-1][0])
    assert seen[0][1] == 9, "0.3 of 30 rows are held out"


def test_it_keeps_the_best_of_a_whole_run(seen):
    [fitted] = small_fitter(early_stopping=EarlyStopping(), n_epochs=8).fit([small_rows()])
    assert fitted.history.stopped == "all steps done"
    assert same(fitted.network, seen[5][0])


def test_it_judges_and_keeps_the_average(seen):
    states = []
    for decay in (None, 0.9):
        [fitted] = small_fitter(early_stopping=EarlyStopping(), n_epochs=8, averaging=decay).fit([small_rows()])
        states.append([state for state, _ in seen])
        seen.clear()
    name = "layers.0.loc"
    mean, total = torch.zeros_like(states[0][0][name]), 0.0
    for raw, averaged in zip(*states, strict=True):
        mean, total = 0.9 * mean + 0.1 * raw[name], 0.9 * total + 0.1
        torch.testing.assert_close(averaged[name], mean / total)
    torch.testing.assert_close(fitted.network.state_dict()[name], states[1][5][name], rtol=0, atol=0)


@pytest.mark.parametrize("make", [regressor, classifier])
def test_it_spares_steps(make):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(40, 5)), rng.normal(size=40)  # nothing to learn
    options = {"early_stopping": True, "max_iter": 300, "n_iter_no_change": 3, "validation_fraction": 0.3}
    model = make(**options).fit(X, y if make is regressor else y > 0)
    assert model.history_.stopped.startswith("stopped by a callback")
    assert model.n_iter_ < 200


def test_it_weighs_the_rows_held_out():
    fitter, weight = small_fitter(n_epochs=5), np.arange(20.0) + 1
    [fitted] = fitter.fit([small_rows(20)])
    parts = fitted.network, fitted.likelihood
    for w in (None, weight):
        rows = small_rows(20, w)

        check = BestSoFar(replace(fitter, early_stopping=EarlyStopping()), parts, [rows])
        assert not check(fitted.history.last)
        [log_probs] = fitter.held_out_log_probs(*parts, [rows], VALIDATION_DRAWS)
        assert check.scores[0] == pytest.approx(np.average(log_probs, weights=w), rel=1e-5)


def test_held_out_scores_are_those_of_predictions():
    """log p(y) of the fitter against the estimator's own predictive density, in standard units."""
    X, y = linear_table(20)
    model = regressor(max_iter=5, n_draws=VALIDATION_DRAWS).fit(X, y)
    standard = torch.as_tensor(model.input_scaling_.transform(X)), model.target_scaling_.transform(y[:, None])
    rows = small_rows(20)
    rows = type(rows)(standard[0].float(), torch.as_tensor(standard[1], dtype=torch.float32), None, rows.unit)
    fitter = small_fitter(seed=model.seed_)
    [found] = fitter.held_out_log_probs(model.network_, model.likelihood_, [rows], VALIDATION_DRAWS)
    np.testing.assert_allclose(found, model.pred_dist(X).log_prob(y) + np.log(y.std()), rtol=1e-4)


def test_it_needs_two_rows():
    X, y = linear_table(2)
    assert np.isfinite(regressor(early_stopping=True, max_iter=2).fit(X, y).predict(X)).all()
    with pytest.raises(ValueError, match="a fit needs at least 2 rows; got n_samples=1"):
        regressor(early_stopping=True).fit(X[:1], y[:1])

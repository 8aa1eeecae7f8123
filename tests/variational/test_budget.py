"""How long networks train when nobody says."""

from dataclasses import replace

import pytest
from small_fits import small_fitter, small_rows

from quick import class_table, linear_table
from vmg.variational import VMGClassifier, VMGRegressor
from vmg.variational.fitter import Fitter
from vmg.variational.method import LONG, STANDARD, Budget
from vmg_paper.baselines import Graves


def test_steps_and_batches_grow_between_their_limits():
    rows = (1, 100, 1_000, 10_000, 40_000, 1_000_000)
    assert [STANDARD.steps(n) for n in rows] == [12_000, 12_000, 12_000, 12_000, 20_000, 20_000]
    assert [LONG.steps(n) for n in rows] == [30_000, 30_000, 30_000, 30_000, 40_000, 40_000]
    assert LONG.steps(30_625) == 35_000
    assert [STANDARD.batch_size(n) for n in rows] == [32, 32, 32, 128, 256, 256]
    assert [LONG.batch_size(n) for n in rows] == [32, 32, 32, 64, 256, 256]
    for budget in (STANDARD, LONG):
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


@pytest.mark.parametrize("kind", [VMGRegressor, VMGClassifier, Graves().regressor], ids=str)
@pytest.mark.parametrize("n_members", [1, 5])
def test_ensembles_for_regression_train_longest_and_so_do_their_trials(budgets, kind, n_members):
    """A trial is a single network, but stands for members of the ensemble."""
    table = class_table(40) if "lassifier" in str(kind) else linear_table(40)
    kind((4,), n_members=n_members, random_state=0).fit(*table)
    trials = 0 if "Graves" in str(kind) else 1
    assert budgets == [LONG if kind is VMGRegressor and n_members > 1 else STANDARD] * (trials + 1)


def test_automatic_sizes_are_those_of_the_budget():
    fitter = small_fitter(batch_size=None, n_epochs=None, budget=Budget(7, 7, batches=1))
    [fitted] = fitter.fit([small_rows(50)])
    assert (fitted.history.last.step, fitted.n_epochs) == (7, 7)  # one batch of 32 rows an epoch

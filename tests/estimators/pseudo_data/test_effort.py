"""How long networks train when nobody says."""

import pytest

from vmg.estimators import PseudoDataClassifier, PseudoDataRegressor
from vmg.estimators.pseudo_data.effort import LONG, STANDARD, Effort
from vmg_paper.baselines import GravesClassifier, GravesRegressor


def test_steps_and_batches_grow_between_their_limits():
    rows = (1, 100, 1_000, 10_000, 40_000, 1_000_000)
    assert [STANDARD.steps(n) for n in rows] == [12_000, 12_000, 12_000, 12_000, 20_000, 20_000]
    assert [LONG.steps(n) for n in rows] == [30_000, 30_000, 30_000, 30_000, 40_000, 40_000]
    assert LONG.steps(30_625) == 35_000
    assert [STANDARD.batch_size(n) for n in rows] == [32, 32, 32, 128, 256, 256]
    assert [LONG.batch_size(n) for n in rows] == [32, 32, 32, 64, 256, 256]
    for effort in (STANDARD, LONG):
        for grown in (effort.steps, effort.batch_size):
            found = [grown(n) for n in range(1, 100_000, 777)]
            assert found == sorted(found)


@pytest.mark.parametrize("kind", [PseudoDataRegressor, PseudoDataClassifier, GravesRegressor, GravesClassifier])
@pytest.mark.parametrize("n_members", [1, 5])
def test_ensembles_for_regression_train_longest(kind, n_members):
    assert kind(n_members=n_members)._effort == (LONG if kind is PseudoDataRegressor and n_members > 1 else STANDARD)


def test_trials_of_an_ensemble_have_its_batches(monkeypatch):
    """A trial is a single network, but stands for members of the ensemble."""
    seen = []
    train = PseudoDataRegressor._train

    def spy(self, sets, *arguments, effort=None, **options):
        seen.append(self._effort if effort is None else effort)
        return train(self, sets, *arguments, effort=Effort(1, 1, batches=1), **options)

    monkeypatch.setattr(PseudoDataRegressor, "_train", spy)
    X = [[0.1 * k] for k in range(40)]
    PseudoDataRegressor((4,), n_pseudo=2, n_members=2, random_state=0).fit(X, [row[0] for row in X])
    assert seen == [LONG, LONG]


def test_automatic_sizes_are_those_of_the_effort(monkeypatch):
    monkeypatch.setattr(PseudoDataRegressor, "_effort", Effort(7, 7, batches=1))
    X = [[0.1 * k, (k % 7) - 3.0] for k in range(50)]
    model = PseudoDataRegressor((4,), n_pseudo=2, max_noise=0.1, random_state=0).fit(X, [row[0] - row[1] for row in X])
    assert (model.history_.last.step, model.n_iter_) == (7, 7)  # one batch of 32 rows an epoch

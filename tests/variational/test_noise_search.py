"""How estimators choose the limit on the noise of pseudo-data."""

from dataclasses import replace

import numpy as np
import pytest

import vmg
from quick import assert_same_bits, linear_table, regressor
from vmg.variational import VMGRegressor
from vmg.variational.fitter import CANDIDATES, TRIAL_STEPS, Fitter, choose_members, choose_one


def test_a_given_noise_limit_is_used():
    X, y = linear_table(30)
    model = regressor(max_iter=2, max_noise=0.4).fit(X, y)
    assert model.max_noise_ == 0.4
    assert all(layer.pseudo_data.max_noise == 0.4 for layer in model.network_.layers)


def test_a_noise_limit_is_chosen_by_held_out_rows(monkeypatch):
    """The candidate whose trials score best; each trial fits to rows that it is not scored on."""
    X, y = linear_table(30)
    trials = []

    def score(self, network, likelihood, held_out, n_draws):
        limits = network.layers[0].pseudo_data.max_noise[:: self.n_members].tolist()
        trials.append((limits, {len(rows.x) for rows in held_out}, self.n_members))
        return [np.full(len(rows.x), -abs(b - 0.3)) for b, rows in zip(limits, held_out, strict=True)]

    monkeypatch.setattr(Fitter, "held_out_log_probs", score)
    model = regressor(max_noise="auto", max_iter=3, n_members=2).fit(X, y)
    [(limits, sizes, members)] = trials
    np.testing.assert_allclose(sorted(set(limits)), CANDIDATES, rtol=1e-6)
    assert sizes == {6}
    assert members == 1
    assert model.max_noise_ == min(CANDIDATES, key=lambda limit: abs(limit - 0.3))
    assert model.network_.layers[0].pseudo_data.max_noise == model.max_noise_
    assert (model.max_noise, model.n_members) == ("auto", 2), "parameters stay as they were given"


@pytest.mark.parametrize("n_members", [1, 2])
@pytest.mark.parametrize(
    ("liked", "tried", "chosen"),
    [
        (0.002, [CANDIDATES, (0.001, 0.003, 0.01)], 0.003),
        (1e-9, [CANDIDATES, (0.001, 0.003, 0.01), (0.0001, 0.0003, 0.001)], 0.0001),
    ],
)
def test_sharper_limits_are_tried_below_a_sharpest_that_wins(liked, tried, chosen, n_members, monkeypatch):
    X, y = linear_table(30)
    trials = []

    def score(self, network, likelihood, held_out, n_draws):
        limits = network.layers[0].pseudo_data.max_noise.tolist()
        trials.append(sorted(set(limits)))
        return [np.full(len(rows.x), -abs(np.log(b / liked))) for b, rows in zip(limits, held_out, strict=True)]

    monkeypatch.setattr(Fitter, "held_out_log_probs", score)
    monkeypatch.setattr("vmg.variational.fitter.ENOUGH", 30)
    model = regressor(max_noise="auto", max_iter=3, n_members=n_members).fit(X, y)
    for found, expected in zip(trials, tried, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    np.testing.assert_allclose(model.max_noise_, chosen)
    few = regressor(max_noise="auto", max_iter=3, n_members=n_members).fit(X[:29], y[:29])
    np.testing.assert_allclose(few.max_noise_, CANDIDATES[0])


def test_members_of_an_ensemble_have_the_limits_whose_mixture_is_best(monkeypatch, tmp_path):
    """Half of the rows like the smallest limit, the others the largest: each gets a member."""
    X, y = linear_table(30)

    def score(self, network, likelihood, held_out, n_draws):
        limits = network.layers[0].pseudo_data.max_noise.tolist()
        likes_small = [np.arange(len(rows.x)) % 2 == 0 for rows in held_out]
        return [np.where(small == (b < 0.1), 0.0, -9.0) - abs(np.log(b / 0.1)) * 1e-3
                for b, small in zip(limits, likes_small, strict=True)]  # fmt: skip

    monkeypatch.setattr(Fitter, "held_out_log_probs", score)
    model = regressor(max_noise="auto", max_iter=3, n_members=2).fit(X, y)
    low, high = model.max_noise_
    assert low < 0.1 < high
    np.testing.assert_allclose(model.network_.layers[0].pseudo_data.max_noise, [low, high], rtol=1e-6)
    model.save(tmp_path / "model.vmg")
    assert_same_bits(model, vmg.load(tmp_path / "model.vmg"), X)


@pytest.mark.parametrize("n_members", [1, 2])
def test_trials_are_short(monkeypatch, n_members):
    asked, train = [], Fitter.train

    def spy(self, sets, choices):
        asked.append(self.most_steps)
        return train(replace(self, most_steps=1), sets, choices)

    monkeypatch.setattr(Fitter, "train", spy)
    VMGRegressor(n_members=n_members, random_state=0).fit(*linear_table(40))
    assert asked == [TRIAL_STEPS, None]  # the trials, then all rows


def test_members_are_chosen_one_by_one_for_their_mixture():
    """Every ensemble of two out of three candidates, by hand: greedy starts with the best and adds its complement."""
    log_probs = np.log([[0.5, 0.5, 0.1, 0.1], [0.4, 0.4, 0.2, 0.2], [0.01, 0.01, 0.6, 0.6]])
    assert log_probs.mean(1).argmax() == 1
    mixtures = [np.log((np.exp(log_probs[1]) + np.exp(other)) / 2).mean() for other in log_probs]
    assert choose_members(log_probs, 2).tolist() == sorted([1, int(np.argmax(mixtures))])
    assert choose_members(log_probs, 1).tolist() == [1]
    assert choose_members(log_probs, 1, np.array([0.0, 0.0, 1.0, 1.0])).tolist() == [2]


def test_one_network_takes_the_most_cautious_limit_that_is_not_clearly_worse():
    rng = np.random.default_rng(0)
    base = rng.normal(size=400)
    noise = rng.normal(size=(3, 400))
    # the middle one is best; the last is worse by a tenth of a standard error, the first by many
    noise -= noise.mean(1, keepdims=True)
    deficit = np.array([[0.5], [0.0], [0.1 / 20]])
    log_probs = base + np.array([[1.0], [0.0], [1.0]]) * noise - deficit
    assert choose_one(log_probs) == 2
    log_probs[2] -= 2 * log_probs[2].std() / 20 * 2  # now by more than one
    assert choose_one(log_probs) == 1
    only_first = np.zeros(400)
    only_first[:5] = 1
    log_probs[0, :5] = log_probs.max() + 5.0
    assert choose_one(log_probs, only_first) == 0


def test_trials_count_weights_and_report_no_progress(monkeypatch):
    """A row that fits no limit but one decides when it weighs enough."""
    X, y = linear_table(30)
    seen = []

    def score(self, network, likelihood, held_out, n_draws):
        limits = network.layers[0].pseudo_data.max_noise.tolist()
        heavy = [rows.weight.numpy() > 1 for rows in held_out]
        return [np.where(h, b, -b) for b, h in zip(limits, heavy, strict=True)]

    monkeypatch.setattr(Fitter, "held_out_log_probs", score)
    for light, best in ((1e-3, CANDIDATES[-1]), (1.0, CANDIDATES[0])):
        model = regressor(max_noise="auto", max_iter=3)
        model.fit(X, y, np.where(np.arange(30) % 3 == 0, 1.01, light), callbacks=[seen.append])
        assert model.max_noise_ == best
    assert {p.n_steps for p in seen} == {model.history_.last.n_steps}


@pytest.mark.parametrize(("n_rows", "n_pseudo"), [(5, 2), (30, 0), (30, (0, 0))])
def test_no_trials_where_they_are_of_no_use(n_rows, n_pseudo, monkeypatch):
    X, y = linear_table(n_rows)
    monkeypatch.setattr(Fitter, "held_out_log_probs", lambda *_: pytest.fail("a trial"))
    model = regressor(max_noise="auto", max_iter=2, n_pseudo=n_pseudo).fit(X, y)
    assert model.max_noise_ in CANDIDATES


def test_a_chosen_limit_has_the_same_bits_again():
    X, y = linear_table(30)
    assert_same_bits(*(regressor(max_noise="auto", max_iter=5).fit(X, y) for _ in range(2)), X)

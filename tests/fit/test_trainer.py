"""Training members side by side: nobody looks at rows that it must not see."""

import numpy as np
import pytest
import torch
from scipy import optimize, stats

from vmg.fit.calibration import MemberPredictions
from vmg.fit.classes import ClassificationMembers
from vmg.fit.design import Design, FitRows, FitSettings, Size, TrainingPlan, choose_size
from vmg.fit.gaussian import RegressionMembers, fit_regression, squash
from vmg.fit.glm import fit_scalar
from vmg.fit.trainer import Adam, train_members
from vmg.likelihoods.families import Poisson

NEVER_STOP = TrainingPlan(max_steps=15, patience=10_000, refit_steps=0)  # training on seen rows alone
N, E = 40, 6


def table(seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(N, 2))
    return x, np.sin(x[:, :1]) + 0.1 * rng.normal(size=(N, 1))


def regression_members(seed=0):
    members = RegressionMembers(2, (5,), ("relu", "tanh"), E)
    members.features.reset_parameters(torch.Generator().manual_seed(seed))
    return members


def classification_members():
    members = ClassificationMembers(2, (5,), ("relu", "tanh"), E, n_classes=2)
    members.features.reset_parameters(torch.Generator().manual_seed(0))
    return members


def targets_of(make, y):
    """Numbers for members of a regression, the signs of them for those of a classification."""
    numbers = torch.as_tensor(y, dtype=torch.float32)
    return numbers if make is regression_members else (numbers[:, 0] > 0).long()


def trained(members, x, y, design, plan=NEVER_STOP, callbacks=()):
    rows = FitRows(x, np.asarray(y), np.ones(len(x)), design, None, torch.Generator().manual_seed(1))
    one = train_members(members, rows, plan=plan, callbacks=callbacks)
    return one.held, one.history


def last_step(members, x, y, design, plan):
    """Parameters of the last step: ``train_members`` goes back to the best one, which may be another's choice."""
    states = []

    def keep(progress):
        states.append([parameter.detach().clone() for parameter in members.parameters()])

    trained(members, x, y, design, plan, callbacks=[keep])
    return states[-1]


@pytest.mark.parametrize("batch_rows", [4096, 16], ids=["full batch", "minibatches"])
@pytest.mark.parametrize("make", [regression_members, classification_members])
def test_held_out_rows_change_no_member(make, batch_rows):
    x, y = table()
    design = Design.choose(x, E, np.random.default_rng(0))
    hidden, blind = design.groups[0].held_out, design.groups[0].members
    targets = targets_of(make, y)
    changed_x, changed = x.copy(), targets.clone()
    changed_x[hidden] = 50 * x[hidden] - 7
    changed[hidden] = -1e3 * targets[hidden] + 1e4 if make is regression_members else 1 - targets[hidden]
    plan = TrainingPlan(max_steps=15, patience=10_000, refit_steps=0, batch_rows=batch_rows)
    last = [last_step(make(), *given, design, plan) for given in ((x, targets), (changed_x, changed))]
    for a, b in zip(*last, strict=True):
        assert torch.equal(a[blind], b[blind])
    others = [e for e in range(E) if e not in blind]
    assert any(not torch.equal(a[others], b[others]) for a, b in zip(*last, strict=True))


@pytest.mark.parametrize("make", [regression_members, classification_members])
def test_what_is_said_of_held_out_rows_does_not_depend_on_their_targets(make):
    x, y = table()
    design = Design.choose(x, E, np.random.default_rng(0))
    seen = torch.as_tensor(~design.held_out, dtype=torch.float32)
    inputs, targets, members = torch.as_tensor(x, dtype=torch.float32), targets_of(make, y), make()
    before = members.predict_held_out(inputs, targets, seen)
    for group in design.groups:
        changed = targets.clone()
        changed[group.held_out] = 10_000 if make is regression_members else 0
        after = members.predict_held_out(inputs, changed, seen)
        np.testing.assert_array_equal(after.loc[group.members], before.loc[group.members])
        if make is regression_members:
            np.testing.assert_array_equal(after.variance[group.members], before.variance[group.members])


def test_training_goes_back_to_the_best_members_and_ends_on_all_rows():
    x, y = table()
    targets = torch.as_tensor(y, dtype=torch.float32)
    design = Design.choose(x, E, np.random.default_rng(0))
    members = regression_members()
    held, history = trained(members, x, targets, design, TrainingPlan(60, 20, 10))
    assert held.index.tolist() == list(range(N)) and held.said.loc.shape == (E, N, 1)
    steps = [record.step for record in history.records]
    assert steps == sorted(set(steps)) and steps[-1] <= 70
    for record in history.records:
        assert record.elbo == pytest.approx(record.expected_log_likelihood - record.kl, abs=1e-9)
        assert record.kl >= -1e-6
    assert history.records[-1].elbo > history.records[0].elbo


@pytest.mark.parametrize("max_steps", [1, 3, 9, 10, 11])
def test_the_last_step_is_always_reported(max_steps):
    x, y = table()
    design = Design.choose(x, E, np.random.default_rng(0))
    plan = TrainingPlan(max_steps, 1_000, max_steps)
    _, history = trained(regression_members(), x, y, design, plan)
    assert history.last.step == 2 * max_steps


def test_softening_keeps_order_and_leaves_usual_inputs_alone():
    x = np.linspace(-50, 50, 1_001)
    soft = squash(x)
    assert (np.diff(soft) > 0).all() and np.abs(soft).max() < 8
    inside = np.abs(x) <= 3
    np.testing.assert_array_equal(soft[inside], x[inside])
    np.testing.assert_allclose(soft, -soft[::-1])


def test_sizes_can_be_asked_for():
    size = choose_size(500)
    assert choose_size(5_000) != size and choose_size(5_000, classes=True) != choose_size(5_000)
    assert size.changed() == size and size.changed(hidden=None) == size
    changed = size.changed(hidden=(3, 2), n_members=1, max_steps=7, rate=0.1, patience=5, batch_rows=9)
    assert changed.hidden == (3, 2) and changed.n_members == 1 and len(changed.activations) == 1
    assert (changed.plan.max_steps, changed.plan.rate, changed.plan.batch_rows) == (7, 0.1, 9)
    assert changed.plan.refit_steps <= 7 and changed.plan.patience == 5


# -- the optimiser ----------------------------------------------------------------------------------------------------


def some_parameters():
    torch.manual_seed(0)
    return [torch.nn.Parameter(torch.randn(4, *shape)) for shape in ((3, 8), (6,), (2,))]


def test_the_optimiser_is_adam():
    ours, theirs = some_parameters(), some_parameters()
    one, other = Adam(ours), torch.optim.Adam(theirs, betas=(0.9, 0.99), fused=True)
    for step in range(1, 21):  # the last parameter has no gradient and stays
        for optimiser, parameters in ((one, ours), (other, theirs)):
            optimiser.zero_grad()
            sum((p**3).sum() for p in parameters[:2]).backward()
        other.param_groups[0]["lr"] = 0.01 * step
        one.step(0.01 * step)
        other.step()
    assert torch.equal(ours[0], theirs[0]) and torch.equal(ours[2], theirs[2])
    torch.testing.assert_close(ours[1], theirs[1], rtol=1e-6, atol=1e-6)


# -- rows that cannot be trained on, and scores ------------------------------------------------------------------------


def test_training_ends_where_the_log_posterior_is_no_longer_finite():
    x, y = table()
    design = Design.choose(x, E, np.random.default_rng(0))
    _, history = trained(regression_members(), x, 1e30 * y, design)  # squares are beyond single precision
    assert history.stopped == "ended where the log posterior was no longer finite" and not history.records


def test_the_score_is_of_rows_with_weight_alone():
    rng = np.random.default_rng(0)
    loc, y = rng.normal(size=(2, 10, 2)), torch.as_tensor(rng.normal(size=(10, 2)))
    weight = torch.as_tensor(rng.integers(0, 3, (2, 10))).double()
    members, nothing = RegressionMembers(3, (4,), ("relu",), 2, n_outputs=2), np.zeros(0)
    score = members.score(MemberPredictions(loc, nothing, nothing), y, weight)
    changed = np.where(weight[..., None] > 0, loc, 1e6)
    assert members.score(MemberPredictions(changed, nothing, nothing), y, weight) == score
    expected = 0.0
    for c in range(2):  # a Student t of four degrees, at its best scale
        errors, counts = (y[:, c].numpy() - loc[..., c]).ravel(), weight.numpy().ravel()

        def loss(log_scale, errors=errors, counts=counts):
            return -np.average(stats.t.logpdf(errors, 4, scale=np.exp(log_scale)), weights=counts)

        expected -= optimize.minimize_scalar(loss, (-3, 1)).fun
    assert score == pytest.approx(expected, abs=1e-4)


# -- held-out samples: predictions of a fit's rows before members have seen them ---------------------------------------


TWELVE = FitSettings(Size((5,), ("relu", "tanh"), 12, TrainingPlan(30, 20, 10)), 0)  # all rows are held out once


def test_a_fit_gives_held_out_distributions_of_its_rows():
    """Each row once, as if new: as wide as new rows, and unlike what members say of rows that they have seen."""
    x, y = table()
    fitted = fit_regression(x, y, None, TWELVE, input_noise=False)
    rows, said = fitted.held_out
    assert np.array_equal(np.sort(rows), np.arange(N))
    at = [list(rows).index(row) for row in (7, 3)]
    np.testing.assert_array_equal(fitted.held_out.at(np.array([7, 3])).loc, said.loc[at])
    seen = fitted.ensemble.predict(x[rows])
    assert np.square(y[rows] - said.loc).mean() > np.square(y[rows] - seen.loc).mean()
    low, high = np.moveaxis(said.interval(0.9), -1, 0)
    assert 0.6 < ((low < y[rows]) & (y[rows] < high)).mean() <= 1
    assert said.row_covariance().shape == (N, N, 1)
    assert fit_regression(x[:8], y[:8], None, TWELVE, input_noise=True).held_out is None


def test_held_out_rows_of_counts():
    x, y = table()
    counts = np.floor(np.exp(1 + y[:, 0]))
    rows, said = fit_scalar(x, counts, Poisson.for_targets(counts, None), None, TWELVE).held_out
    assert np.array_equal(np.sort(rows), np.arange(N))
    assert np.corrcoef(said.mean, counts[rows])[0, 1] > 0.5

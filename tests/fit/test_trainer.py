"""Training members side by side: nobody looks at rows that it must not see."""

import numpy as np
import pytest
import torch

from vmg.fit.classes import ClassificationMembers, fit_classification
from vmg.fit.design import Design, Size, TrainingPlan, choose_size
from vmg.fit.gaussian import RegressionMembers, fit_regression, squash
from vmg.fit.trainer import Adam, train_members

NEVER_STOP = TrainingPlan(max_steps=15, patience=10_000, refit_steps=0)  # training on seen rows alone
N, E = 40, 6


def table(seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(N, 2))
    return x, np.sin(x[:, :1]) + 0.1 * rng.normal(size=(N, 1))


def regression_members():
    members = RegressionMembers(2, (5,), 1, ("relu", "tanh"), E)
    members.features.reset_parameters(torch.Generator().manual_seed(0))
    return members


def classification_members():
    members = ClassificationMembers(2, (5,), 2, ("relu", "tanh"), E)
    members.features.reset_parameters(torch.Generator().manual_seed(0))
    return members


def trained(members, x, y, held_out, plan=NEVER_STOP, callbacks=()):
    generator = torch.Generator().manual_seed(1)
    return train_members(
        members,
        torch.as_tensor(x, dtype=torch.float32),
        y,
        held_out,
        list(range(E)),
        plan=plan,
        generator=generator,
        callbacks=callbacks,
    )


def perturbed(x, y, rows):
    x, y = x.copy(), y.copy()
    x[rows] = 50 * x[rows] - 7
    y[rows] = -1e3 * y[rows] + 1e4
    return x, y


@pytest.mark.parametrize("batch_rows", [4096, 16], ids=["full batch", "minibatches"])
def test_held_out_rows_change_no_regression_member(batch_rows):
    x, y = table()
    design = Design.choose(x, E, np.random.default_rng(0))
    rows = design.groups[0].held_out
    blind = design.groups[0].members
    plan = TrainingPlan(max_steps=15, patience=10_000, refit_steps=0, batch_rows=batch_rows)
    last = [_last_step(*rows_of, design, plan) for rows_of in ((x, y), perturbed(x, y, rows))]
    for a, b in zip(*last, strict=True):
        assert torch.equal(a[blind], b[blind])
    others = [e for e in range(E) if e not in blind]
    assert any(not torch.equal(a[others], b[others]) for a, b in zip(*last, strict=True))


def _last_step(x, y, design, plan):
    """Parameters of the last step: ``train_members`` goes back to the best one, which may be another's choice."""
    members = regression_members()
    states = []

    def keep(progress):
        states.append([parameter.detach().clone() for parameter in members.parameters()])

    trained(members, x, torch.as_tensor(y, dtype=torch.float32), design.held_out, plan, callbacks=[keep])
    return states[-1]


def test_held_out_labels_change_no_classification_member():
    x, y = table()
    labels = torch.as_tensor(y[:, 0] > 0).long()
    design = Design.choose(x, E, np.random.default_rng(0))
    rows, blind = design.groups[0].held_out, design.groups[0].members
    last = []
    for change in (False, True):
        inputs, given = x.copy(), labels.clone()
        if change:
            inputs[rows] *= 20
            given[torch.as_tensor(rows)] = 1 - given[torch.as_tensor(rows)]
        members, states = classification_members(), []

        def keep(progress, members=members, states=states):
            states.append([parameter.detach().clone() for parameter in members.parameters()])

        trained(members, inputs, given, design.held_out, callbacks=[keep])
        last.append(states[-1])
    for a, b in zip(*last, strict=True):
        torch.testing.assert_close(a[blind], b[blind], rtol=0, atol=0)
    others = [e for e in range(E) if e not in blind]
    assert any(not torch.equal(a[others], b[others]) for a, b in zip(*last, strict=True))


def test_what_is_said_of_held_out_rows_does_not_depend_on_their_targets():
    x, y = table()
    design = Design.choose(x, E, np.random.default_rng(0))
    seen = torch.as_tensor(~design.held_out, dtype=torch.float32)
    inputs = torch.as_tensor(x, dtype=torch.float32)
    members = regression_members()
    targets = torch.as_tensor(y, dtype=torch.float32)
    before = members.predict_held_out(inputs, targets, seen)
    for group in design.groups:
        changed = targets.clone()
        changed[torch.as_tensor(group.held_out)] = 1e4
        after = members.predict_held_out(inputs, changed, seen)
        np.testing.assert_array_equal(after.loc[group.members], before.loc[group.members])
        np.testing.assert_array_equal(after.variance[group.members], before.variance[group.members])
    classes = classification_members()
    labels = (targets[:, 0] > 0).long()
    one = classes.predict_held_out(inputs, labels, seen)
    for group in design.groups:
        changed = labels.clone()
        changed[torch.as_tensor(group.held_out)] = 0
        other = classes.predict_held_out(inputs, changed, seen)
        np.testing.assert_array_equal(other.loc[group.members], one.loc[group.members])


def test_training_goes_back_to_the_best_members_and_ends_on_all_rows():
    x, y = table()
    targets = torch.as_tensor(y, dtype=torch.float32)
    design = Design.choose(x, E, np.random.default_rng(0))
    members = regression_members()
    held, history = trained(members, x, targets, design.held_out, TrainingPlan(60, 20, 10))
    assert held.index.tolist() == list(range(N)) and held.predictions.loc.shape == (E, N, 1)
    steps = [record.step for record in history.records]
    assert steps == sorted(set(steps)) and steps[-1] <= 70
    for record in history.records:
        assert record.elbo == pytest.approx(record.expected_log_likelihood - record.kl, abs=1e-9)
        assert record.kl >= -1e-6
    assert history.records[-1].elbo > history.records[0].elbo


def test_without_held_out_rows_there_is_nothing_to_say_of_them():
    x, y = table()
    held, history = trained(
        regression_members(),
        x,
        torch.as_tensor(y, dtype=torch.float32),
        np.zeros((E, N), bool),
        TrainingPlan(10, 10, 5),
    )
    assert held is None and history.records


@pytest.mark.parametrize("max_steps", [1, 3, 9, 10, 11])
def test_the_last_step_is_always_reported(max_steps):
    x, y = table()
    design = Design.choose(x, E, np.random.default_rng(0))
    plan = TrainingPlan(max_steps, 1_000, max_steps)
    _, history = trained(regression_members(), x, torch.as_tensor(y, dtype=torch.float32), design.held_out, plan)
    assert history.last.step == 2 * max_steps


# -- ensembles --------------------------------------------------------------------------------------------------------


SMALL = Size((5,), ("relu", "tanh"), E, TrainingPlan(30, 20, 10))


def ensemble(x, y, seed=0):
    return fit_regression(x, y, None, size=SMALL, input_noise=True, seed=seed)[0]


def test_the_function_factor_is_the_function_variance():
    x, y = table()
    fitted = ensemble(x, y)
    factor, found = fitted.function_factor(x), fitted.predict(x)
    np.testing.assert_allclose((factor**2).sum(0), found.function_variance, rtol=1e-5)
    assert found.loc.shape == found.noise_variance.shape == (N, 1) and found.degrees.shape == (1,)


def test_an_update_is_a_new_ensemble():
    x, y = table()
    fitted = ensemble(x, y)
    before = fitted.predict(x)
    updated = fitted.updated(x, y + 1, None)
    np.testing.assert_array_equal(fitted.predict(x).loc, before.loc)
    assert (updated.predict(x).loc - before.loc).mean() > 0.2
    assert updated.calibrations == fitted.calibrations


def test_class_probabilities_of_an_ensemble():
    x, y = table()
    fitted, _ = fit_classification(x, (y[:, 0] > 0).astype(int), 2, None, size=SMALL, seed=0)
    drawn = fitted.sample_probabilities(x, 5, 0)
    assert drawn.shape == (5 * E, N, 2)
    np.testing.assert_allclose(drawn.sum(-1), 1)
    np.testing.assert_allclose(fitted.sample_probabilities(x[:3], 5, 0), drawn[:, :3], rtol=1e-4, atol=1e-6)


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


def test_the_optimiser_is_adam_to_the_last_bit():
    torch.manual_seed(0)
    ours = [
        torch.nn.Parameter(torch.randn(4, 3)),
        torch.nn.Parameter(torch.randn(5)),
        torch.nn.Parameter(torch.ones(2)),
    ]
    theirs = [torch.nn.Parameter(p.detach().clone()) for p in ours]
    one, other = Adam(ours), torch.optim.Adam(theirs, betas=(0.9, 0.99), fused=True)
    for step in range(1, 21):  # the last parameter has no gradient and stays
        for optimiser, parameters in ((one, ours), (other, theirs)):
            optimiser.zero_grad()
            sum((p**3).sum() for p in parameters[:2]).backward()
        other.param_groups[0]["lr"] = 0.01 * step
        one.step(0.01 * step)
        other.step()
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(a, b)

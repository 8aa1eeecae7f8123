import copy
import itertools
import math

import pytest
import torch
from regression_rows import D, N, all_finite, regression, seeded, values
from torch import nn

import vmg
from vmg.likelihoods import GaussianLikelihood, KnownNoiseLikelihood
from vmg.nn import MLP, bayesianize, use_generator
from vmg.training import Minibatches, TrainingError, constant, cosine, train

# -- one run ----------------------------------------------------------------------------------------------------------


def test_equals_an_obvious_loop():
    """Adam on minus the bound, minibatch by minibatch, with the widths of small and of large tensors."""
    x, y = (t.double() for t in regression())
    network = MLP(D, (150, 150), 1, n_pseudo=2).double()
    likelihood = GaussianLikelihood(conjugate=False).double()
    expected_network, expected_likelihood = copy.deepcopy((network, likelihood))
    options = {"n_steps": 7, "batch_size": 8, "learning_rate": 0.01, "averaging": None}
    train(network, likelihood, x, y, generator=seeded(), **options)

    generator = seeded()
    use_generator(expected_network, generator)
    optimiser = torch.optim.Adam([*expected_network.parameters(), *expected_likelihood.parameters()], lr=0.01)
    for index in itertools.islice(Minibatches(N, 8, generator=generator), 7):
        optimiser.zero_grad()
        terms = vmg.elbo(expected_network, expected_likelihood, x[index], y[index], n_data=N)
        (-terms.total).backward()
        optimiser.step()
    for a, b in zip(values(network, likelihood), values(expected_network, expected_likelihood), strict=True):
        torch.testing.assert_close(a, b)


def test_raises_the_bound_and_records_it_without_printing(capsys):
    x, y = regression()
    options = {"n_steps": 250, "learning_rate": 0.01, "report_every": 100, "generator": seeded()}
    history = train(MLP(D, (8,), 1), GaussianLikelihood(), x, y, **options)
    assert [r.step for r in history.records] == [100, 200, 250]
    assert history.stopped == "all steps done"
    assert history.last is history.records[-1]
    assert history.last.elbo > history.records[0].elbo
    for record in history.records:
        assert record.n_steps == 250
        assert record.elbo == pytest.approx(record.expected_log_likelihood - record.kl)
        assert record.learning_rate == 0.01
    seconds = [r.seconds for r in history.records]
    assert seconds == sorted(seconds)
    assert capsys.readouterr() == ("", "")


def test_reports_the_mean_since_the_last_report():
    x, y = regression()
    records = []
    for report_every in (1, 4):
        torch.manual_seed(0)
        options = {"n_steps": 8, "report_every": report_every, "generator": seeded()}
        records.append(train(MLP(D, (4,), 1), KnownNoiseLikelihood(0.5), x, y, **options).records)
    every, fourth = records
    for k, record in enumerate(fourth):
        mean = sum(r.elbo for r in every[4 * k : 4 * k + 4]) / 4
        assert record.elbo == pytest.approx(mean, rel=1e-5)


def test_every_callback_sees_every_report_and_any_may_stop():
    x, y = regression()
    seen = []

    def stop(progress):
        seen.append(("stop", progress.step))
        return progress.step == 6

    callbacks = [stop, lambda progress: seen.append(("watch", progress.step))]
    history = train(MLP(D, (), 1), KnownNoiseLikelihood(1.0), x, y, n_steps=50, report_every=3, callbacks=callbacks)
    assert seen == [("stop", 3), ("watch", 3), ("stop", 6), ("watch", 6)]
    assert history.stopped == "stopped by a callback at step 6"
    assert history.last.step == 6


@pytest.mark.parametrize("conjugate", [True, False])
@pytest.mark.parametrize("batch_shape", [(), (2,)])
def test_same_seed_gives_the_same_bits(batch_shape, conjugate):
    x, y = regression()
    outcomes = []
    for seed in (1, 1, 2):
        torch.manual_seed(0)
        network = MLP(D, (4,), 1, n_pseudo=2, batch_shape=batch_shape)
        likelihood = GaussianLikelihood(conjugate=conjugate, batch_shape=batch_shape)
        torch.manual_seed(seed + 100 * len(outcomes))  # the default generator plays no part
        train(network, likelihood, x, y, n_steps=10, batch_size=8, batch_shape=batch_shape, generator=seeded(seed))
        outcomes.append(values(network, likelihood))
    first, second, other = outcomes
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(first[:1], other[:1], strict=True))


def test_averaging_is_the_exponential_mean_of_all_steps():
    """Weights β^(t−s), normalised: free of bias towards the start. Callbacks see it as it grows."""
    x, y = (part.double() for part in regression())
    decay = 0.6

    def run(averaging):
        seen, network = [], MLP(D, (4,), 1).double()
        network.reset_parameters(seeded())
        options = {"n_steps": 5, "learning_rate": 0.1, "averaging": averaging, "report_every": 1}
        callbacks = [lambda progress: seen.append(values(network))]
        train(network, KnownNoiseLikelihood(0.5).double(), x, y, callbacks=callbacks, generator=seeded(), **options)
        return seen, values(network)

    (steps, stays), (averages, last) = run(None), run(decay)
    assert all(torch.equal(a, b) for a, b in zip(stays, steps[-1], strict=True)), "without averaging"
    for t, seen in enumerate(averages):
        weights = torch.tensor([decay ** (t - s) for s in range(t + 1)], dtype=torch.float64)
        for k, averaged in enumerate(seen):
            torch.testing.assert_close(
                averaged, torch.stack([step[k] for step in steps[: t + 1]], -1) @ weights / weights.sum()
            )
    assert all(torch.equal(a, b) for a, b in zip(last, averages[-1], strict=True))
    assert not any(torch.allclose(a, b, atol=1e-3) for a, b in zip(last, steps[-1], strict=True))


def test_schedules():
    assert [constant(p) for p in (0.0, 0.3, 1.0)] == [1, 1, 1]
    assert [cosine(p) for p in (0.0, 0.5, 1.0)] == pytest.approx([1, 0.5, 0])
    x, y = regression()
    rates = {}
    for schedule in (constant, cosine):
        options = {"n_steps": 4, "report_every": 1, "learning_rate": 0.1, "schedule": schedule}
        history = train(MLP(D, (), 1), KnownNoiseLikelihood(1.0), x, y, **options)
        rates[schedule] = [r.learning_rate for r in history.records]
    assert rates[constant] == [0.1] * 4
    assert rates[cosine] == pytest.approx([0.05 * (1 + math.cos(math.pi * k / 4)) for k in range(4)])


def test_a_learning_rate_of_zero_moves_nothing():
    x, y = regression()
    network = MLP(D, (4,), 1, n_pseudo=2)
    before = values(network)
    train(network, KnownNoiseLikelihood(1.0), x, y, n_steps=3, schedule=lambda progress: 0.0)
    for a, b in zip(values(network), before, strict=True):
        torch.testing.assert_close(a, b)


def test_leaves_the_network_as_it_found_it_but_for_the_values():
    """The same parameter objects, frozen ones untouched, each with memory of its own, ready for another run."""
    x, y = regression()
    network = MLP(D, (4,), 1, n_pseudo=2)
    frozen = next(network.parameters())
    frozen.requires_grad_(False)
    parameters, before = list(network.parameters()), frozen.clone()
    for _ in range(2):
        train(network, GaussianLikelihood(), x, y, n_steps=3, generator=seeded())
    assert all(a is b for a, b in zip(network.parameters(), parameters, strict=True))
    assert torch.equal(frozen, before)
    assert not frozen.requires_grad
    assert all(p.requires_grad for p in parameters[1:])
    assert all(p.grad is None for p in parameters)
    assert all(p.untyped_storage().nbytes() == p.numel() * p.element_size() for p in parameters)
    assert not network.training


def test_a_callback_that_raises_leaves_a_usable_network():
    x, y = regression()
    network = MLP(D, (4,), 1)

    def interrupt(progress):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(network, KnownNoiseLikelihood(1.0), x, y, n_steps=9, report_every=2, callbacks=[interrupt])
    assert all_finite(network)
    assert all(p.untyped_storage().nbytes() == p.numel() * p.element_size() for p in network.parameters())
    train(network, KnownNoiseLikelihood(1.0), x, y, n_steps=2)


def test_weights_equal_repeated_rows():
    """Whole batches and one weight matrix for all rows, so that both runs see the same noise."""
    x, y = (t.double() for t in regression())
    counts = torch.arange(N) % 3
    repeated = torch.arange(N).repeat_interleave(counts)
    assert len(repeated) == N, "both runs must draw equally many random numbers"
    outcomes = []
    for rows, weight in ((repeated, None), (torch.arange(N), counts.double())):
        torch.manual_seed(0)
        network = MLP(D, (4,), 1, sampling="weights").double()
        likelihood = GaussianLikelihood().double()
        options = {"n_steps": 5, "batch_size": N, "learning_rate": 0.01, "weight": weight, "generator": seeded()}
        train(network, likelihood, x[rows], y[rows], **options)
        outcomes.append(values(network, likelihood))
    for a, b in zip(*outcomes, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_steps": 0}, "n_steps and batch_size must be at least 1; got 0 and 32"),
        ({"batch_size": 0}, "n_steps and batch_size must be at least 1; got 1 and 0"),
        ({"averaging": 1.0}, "averaging must be in"),
        ({"x": torch.full((N, D), math.nan)}, "x and y must be finite"),
        ({"y": torch.full((N, 1), math.inf)}, "x and y must be finite"),
        ({"x": torch.ones(N, D + 1)}, "x must have 3 features"),
        ({"y": torch.ones(N)}, "y must have the shape of the network's output"),
        ({"x": torch.ones(0, D), "y": torch.ones(0, 1)}, "at least one row"),
        ({"y": torch.ones(N + 1, 1)}, "y must .*24.*got 25"),
        ({"y": torch.ones(N - 1, 1)}, "y must .*24.*got 23"),
    ],
)
def test_wrong_arguments(options, message):
    x, y = regression()
    with pytest.raises(ValueError, match=message):
        train(MLP(D, (), 1), KnownNoiseLikelihood(1.0), **{"x": x, "y": y, "n_steps": 1, **options})


# -- when the bound stops being finite --------------------------------------------------------------------------------


@pytest.mark.parametrize("report_every", [1, 100])
@pytest.mark.parametrize("n_pseudo", [0, 2, None])
def test_an_absurd_learning_rate(n_pseudo, report_every):
    """Also of a plain model that was made Bayesian."""
    x, y = regression()
    plain = nn.Sequential(nn.Linear(D, 4), nn.ReLU(), nn.Linear(4, 1))
    network = bayesianize(plain) if n_pseudo is None else MLP(D, (4,), 1, n_pseudo=n_pseudo)
    likelihood, options = GaussianLikelihood(), {"n_steps": 50, "learning_rate": 1e10, "report_every": report_every}
    with pytest.raises(TrainingError, match=r"not finite at step \d+, first in .*\d"):
        train(network, likelihood, x, y, **options)
    assert all_finite(network, likelihood)


@pytest.mark.parametrize("n_pseudo", [0, 2])
@pytest.mark.parametrize("layer", [0, 1])
def test_a_poisoned_layer_is_named_and_healed(n_pseudo, layer):
    x, y = regression()
    network, good = MLP(D, (4,), 1, n_pseudo=n_pseudo), []

    def poison(progress):
        good.extend(values(network))
        with torch.no_grad():
            for parameter in network.layers[layer].parameters():
                parameter.fill_(math.nan)

    with pytest.raises(TrainingError, match=rf"not finite at step 4, first in .*layers\.{layer}"):
        train(network, KnownNoiseLikelihood(1.0), x, y, n_steps=9, report_every=3, callbacks=[poison], averaging=None)
    assert all(torch.equal(a, b) for a, b in zip(values(network), good, strict=True)), "the last good report's"


@pytest.mark.parametrize("conjugate", [True, False])
def test_a_poisoned_likelihood_is_named_and_healed(conjugate):
    x, y = regression()
    network, likelihood = MLP(D, (4,), 1), GaussianLikelihood(conjugate=conjugate)

    def poison(progress):
        with torch.no_grad():
            for parameter in likelihood.parameters():
                parameter.fill_(math.nan)

    with pytest.raises(TrainingError, match="step 4, first in the likelihood"):
        train(network, likelihood, x, y, n_steps=9, report_every=3, callbacks=[poison], averaging=None)
    assert all_finite(network, likelihood)


@pytest.mark.parametrize("n_steps", [1, 2, 9])
@pytest.mark.parametrize("report_every", [1, 100])
def test_a_gradient_that_is_not_finite(n_steps, report_every):
    """A finite bound with a gradient of NaN, 0 × ∞ where h < 0: bad values must not pass for good ones."""
    x, y = regression()
    network = MLP(D, (4,), 1, activation=lambda h: (h * (h > 0)).sqrt())
    with pytest.raises(TrainingError):
        train(network, KnownNoiseLikelihood(1.0), x, y, n_steps=n_steps, report_every=report_every)
    assert all_finite(network)

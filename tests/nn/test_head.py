"""The Bayesian output layer on any features: one pass or several, one network or replicas, any module."""

import copy

import pytest
import torch
from torch import nn

import vmg
from vmg.likelihoods import (
    CategoricalLikelihood,
    FullCovarianceLikelihood,
    GaussianLikelihood,
    HeteroscedasticLikelihood,
    KnownNoiseLikelihood,
)
from vmg.math.evidence import NoisePrior, condition, row_statistics
from vmg.math.softmax_evidence import class_probabilities
from vmg.nn.head import BayesianHead


class Backbone(nn.Module):
    """A user's own features."""

    def __init__(self, n_in=3, n_features=5):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(n_in, 7), nn.Tanh(), nn.Linear(7, n_features), nn.SiLU())

    def forward(self, x):
        return self.layers(x)


class Replicas(nn.Module):
    """Several sets of random features in one module."""

    def __init__(self, n=2):
        super().__init__()
        self.directions = nn.Parameter(torch.randn(n, 3, 5, dtype=torch.float64))

    def forward(self, x):
        return torch.tanh(x @ self.directions)


def rows(n=40, c=1, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 3, generator=generator, dtype=torch.float64)
    noise = torch.randn(n, c, generator=generator, dtype=torch.float64)
    return x, x[:, :1] - x[:, 1:2].square() + 0.1 * noise


def make(c=1, **options):
    return BayesianHead(Backbone().double(), n_features=5, n_outputs=c, **options)


@pytest.mark.parametrize("n_outputs", [1, 2])
@pytest.mark.parametrize("full", [False, True])
def test_a_fit_in_batches_is_a_fit_at_once(n_outputs, full):
    head = make(n_outputs, noise_prior=NoisePrior(full=full))
    other = copy.deepcopy(head)
    x, y = rows(c=n_outputs)
    head.fit([(x, y)])
    other.fit([(x[:7], y[:7]), (x[7:31], y[7:31]), (x[31:], y[31:])])
    for a, b in zip(head.predict(x), other.predict(x), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-8)
    for a, b in zip(head.output.statistics, other.output.statistics, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_an_update_is_a_fit_to_all_rows():
    head = make()
    other = copy.deepcopy(head)
    x, y = rows()
    head.fit([(x[:20], y[:20])], learn_precision=False).update(x[20:], y[20:])
    other.fit([(x, y)], learn_precision=False)
    for a, b in zip(head.predict(x), other.predict(x), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)
    head.fit([(x, y)], learn_precision=False)  # a new fit forgets
    assert head.output.count == 40


def test_weights_are_repeated_rows():
    head = make()
    other = copy.deepcopy(head)
    x, y = rows()
    weight = torch.arange(40).remainder(3)
    head.update(x, y, weight)
    other.update(x.repeat_interleave(weight, 0), y.repeat_interleave(weight, 0))
    for a, b in zip(head.predict(x), other.predict(x), strict=True):
        torch.testing.assert_close(a, b)


def test_the_posterior_is_that_of_linear_regression():
    head = make(bias=True)
    x, y = rows()
    head.fit([(x, y)])
    phi = torch.cat([head.features(x), torch.ones(40, 1).double()], -1).detach()
    expected = condition(row_statistics(phi, y), head.output.prior_precision().detach().double(), head.noise_prior)
    mean, noise, epistemic, df = head.predict(x)
    torch.testing.assert_close(mean, phi @ expected.mean)
    torch.testing.assert_close(noise[0], expected.noise_variance)
    torch.testing.assert_close(epistemic[:, 0], expected.relative_variance(phi) * expected.noise_variance)
    assert df == 2 * head.noise_prior.concentration + 40
    torch.testing.assert_close(head(x), mean)


def test_replicas_are_a_loop():
    features = Replicas()
    head = BayesianHead(features, n_features=5, batch_shape=(2,))
    x, y = rows()
    head.fit([(x, y)], learn_precision=False)
    evidence = head.log_evidence(x, y)
    for i in range(2):
        alone = Replicas(1)
        with torch.no_grad():
            alone.directions.copy_(features.directions[i : i + 1])
        one = BayesianHead(nn.Sequential(alone, nn.Flatten(0, 1)), n_features=5)
        one.fit([(x, y)], learn_precision=False)
        for a, b in zip(head.predict(x), one.predict(x), strict=True):
            torch.testing.assert_close(a[i], b)
        torch.testing.assert_close(evidence[i], one.log_evidence(x, y))


def test_a_users_network_learns_by_the_evidence():
    torch.manual_seed(0)
    head = make()
    x, y = rows(100)
    optimiser = torch.optim.Adam(head.parameters(), lr=0.03)
    values = []
    for _ in range(100):
        optimiser.zero_grad()
        value = head.log_evidence(x, y) + head.log_prior()
        (-value).backward()
        optimiser.step()
        values.append(value.item())
    assert all(parameter.grad is not None for parameter in head.parameters())
    assert values[-1] > values[0] + 50
    head.fit([(x, y)])
    x_new, y_new = rows(100, seed=1)
    assert (head(x_new) - y_new).square().mean() < 0.1 * y_new.var()


def test_the_evidence_is_differentiable():
    head = make()
    x, y = rows(12)

    def value(*parameters):
        named = dict(zip([name for name, _ in head.named_parameters()], parameters, strict=True))
        return torch.func.functional_call(head, named, (x, y), tie_weights=False)

    head.forward = head.log_evidence
    inputs = tuple(parameter.detach().double().requires_grad_() for parameter in head.parameters())
    assert torch.autograd.gradcheck(value, inputs)


def test_precisions_are_learned_by_the_evidence():
    torch.manual_seed(0)
    head = make()
    x, y = rows()
    head.fit([(x, y)])
    best = head.log_evidence(x, y).item()
    for shift in (-0.5, 0.5):
        for group in range(len(head.output.group_sizes)):
            with torch.no_grad():
                head.output.log_precision[group] += shift
                assert head.log_evidence(x, y).item() <= best + 1e-4
                head.output.log_precision[group] -= shift


def test_the_joint_covariance_is_that_of_drawn_functions():
    head = make()
    x, y = rows()
    head.fit([(x, y)])
    mean, covariance = head.posterior(x[:4])
    _, _, epistemic, _ = head.predict(x[:4])
    torch.testing.assert_close(covariance[0].diagonal(), epistemic[:, 0])
    drawn = head.sample_functions(x[:4], 50_000, torch.Generator().manual_seed(0))[..., 0]
    spread = drawn.std(0)
    assert ((drawn.mean(0) - mean[:, 0]).abs() < 5 * spread / 50_000**0.5).all()
    error = 6 * torch.outer(spread, spread) / 50_000**0.5
    assert ((torch.cov(drawn.T) - covariance[0]).abs() < error).all()


def test_a_state_dict_keeps_what_was_seen():
    head = make()
    x, y = rows()
    head.fit([(x, y)])
    other = make()
    other.load_state_dict(head.state_dict())
    for a, b in zip(head.predict(x), other.predict(x), strict=True):
        assert torch.equal(a, b)


def test_wrong_uses():
    with pytest.raises(ValueError, match=r"group_sizes must add up to n_features \(5\); got \(2, 2\)"):
        make(group_sizes=(2, 2))
    x, y = rows()
    with pytest.raises(ValueError, match="y must have 2 outputs"):
        make(2).log_evidence(x, y)
    with pytest.raises(ValueError, match="n_samples must be at least 1; got 0"):
        make().update(x, y).sample_functions(x, 0)


# -- signatures, classes, ensembles -----------------------------------------------------------------------------------


def test_sizes_are_seen_from_the_rows():
    x, y = rows(c=2)
    head = BayesianHead(Backbone().double(), GaussianLikelihood(2))
    with pytest.raises(ValueError, match="the head has seen no rows yet"):
        head(x)
    head.fit([(x, y)])
    other = BayesianHead(head.features, n_features=5, n_outputs=2).fit([(x, y)])
    for a, b in zip(head.predict(x), other.predict(x), strict=True):
        torch.testing.assert_close(a, b)
    mean, covariance = head.posterior(x[:4])
    assert mean.shape == (4, 2)
    assert covariance.shape == (2, 4, 4)


def test_the_likelihood_brings_the_prior_of_the_noise():
    backbone = Backbone()
    assert BayesianHead(backbone, GaussianLikelihood(2, concentration=3.0, rate=0.5)).noise_prior == NoisePrior(
        3.0, 0.5
    )
    full = BayesianHead(backbone, FullCovarianceLikelihood(2, concentration=3.0, rate=0.5)).noise_prior
    assert full == NoisePrior(3.0, 0.5, full=True)
    assert BayesianHead(backbone, CategoricalLikelihood()).noise_prior is None
    for wrong in (KnownNoiseLikelihood(1.0), HeteroscedasticLikelihood(1)):
        with pytest.raises(TypeError, match="integrated out"):
            BayesianHead(backbone, wrong)


@pytest.mark.parametrize("likelihood", [None, CategoricalLikelihood()])
def test_a_head_takes_the_place_of_a_layer(likelihood):
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.ModuleDict({"fc": nn.Linear(5, 2)})["fc"])
    head = BayesianHead(model, likelihood, layer="2")
    x = torch.randn(20, 3)
    y = torch.randn(20, 2) if likelihood is None else torch.randint(2, (20,))
    torch.testing.assert_close(head.design(x)[:, :5], model[:2](x))
    assert head.fit([(x, y)])(x).shape == (20, 2)
    assert isinstance(model[2], nn.Linear), "the model stays as it is"
    with pytest.raises(ValueError, match=r"layer must name an nn.Linear of the model, one of \['0', '2'\]; got 'fc'"):
        BayesianHead(model, layer="fc")


def test_predictions_of_a_head_are_moments_of_its_student_t():
    x, y = rows()
    head = BayesianHead(Backbone().double()).fit([(x, y)])
    mean, noise, epistemic, degrees = head.predict(x)
    found = vmg.predict(head, x, batch_size=7)
    torch.testing.assert_close(found.mean, mean)
    torch.testing.assert_close(found.std**2, (noise + epistemic) * degrees / (degrees - 2))
    torch.testing.assert_close(found.aleatoric**2 + found.epistemic**2, found.std**2)


def classes(n=60, seed=0):
    x, _ = rows(n, seed=seed)
    return x, (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long()


def saturated(n=60):
    """Rows that features separate: at the mode their curvature vanishes, so the covariance must feed back on it."""
    x, y = classes(n)
    return 4 * torch.cat([x, nn.functional.one_hot(y, 3).double()], -1), y


def expected_probabilities(phi, output):
    variance = torch.stack([((phi @ torch.linalg.inv(A)) * phi).sum(-1) for A in output.precision], -1)
    return class_probabilities(phi @ output.mean, variance)


@pytest.mark.parametrize("rows", [classes, saturated])
def test_a_head_of_classes_is_at_the_optimum_of_its_bound(rows):
    """The means solve a M = Φᵀ(y − p) and each precision is that of the curvature, as written in the module."""
    x, y = rows()
    head = BayesianHead(nn.Identity(), CategoricalLikelihood(), n_outputs=3).fit([(x[:30], y[:30]), (x[30:], y[30:])])
    phi, output = head.design(x).detach(), head.output
    a = output.prior_precision().double()
    p = expected_probabilities(phi, output)
    labels = nn.functional.one_hot(y, 3).double()
    torch.testing.assert_close(a.unsqueeze(-1) * output.mean, phi.mT @ (labels - p), atol=0.05, rtol=0.02)
    for k in range(3):
        curvature = p[:, k : k + 1] * (1 - p[:, k : k + 1])
        torch.testing.assert_close(
            output.precision[k], torch.diag(a) + (curvature * phi).mT @ phi, rtol=0.02, atol=0.02
        )
    assert (head(x).argmax(-1) == y).double().mean() > 0.7


def test_precisions_of_classes_are_best_for_the_posterior():
    """The derivative of the bound by log a is ½(nK − a Σ (‖m_i‖² + Σ_k S_k,ii)): zero at the optimum."""
    x, y = classes()
    output = BayesianHead(Backbone().double(), CategoricalLikelihood()).fit([(x, y)]).output
    spread = torch.linalg.inv(output.precision).diagonal(dim1=-2, dim2=-1).sum(0)
    energy = output.mean.square().sum(-1) + spread
    expected = torch.stack([3 * len(part) / part.sum() for part in energy.split(list(output.group_sizes))])
    torch.testing.assert_close(output.log_precision.double(), expected.log(), atol=0.02, rtol=0)


def trained_classifier(x, y, steps=300):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 20), nn.Tanh(), nn.Linear(20, 3)).double()
    optimiser = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(steps):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimiser.step()
    return model


def test_trained_weights_stay_the_mean_and_later_rows_move_them():
    x, y = classes(100)
    model = trained_classifier(x, y)
    head = BayesianHead(model, CategoricalLikelihood(), layer="2", keep_weights=True).fit([(x, y)])
    torch.testing.assert_close(head(x), model(x).detach())
    p = expected_probabilities(head.design(x).detach(), head.output)
    curvature = p[:, 1:2] * (1 - p[:, 1:2])
    expected = torch.diag(head.output.prior_precision().double()) + (curvature * head.design(x)).mT @ head.design(x)
    torch.testing.assert_close(head.output.precision[1], expected.detach(), rtol=0.02, atol=0.02)
    head.update(x[:20], (y[:20] + 1) % 3)
    assert (head(x) - model(x)).abs().max() > 0.05
    for wrong in ({"layer": None}, {"layer": "2", "likelihood": None}):
        options = {"likelihood": CategoricalLikelihood()} | wrong
        with pytest.raises(ValueError, match="keep_weights needs"):
            BayesianHead(model, **options, keep_weights=True)
    with pytest.raises(ValueError, match="keep_weights needs bias=True"):
        BayesianHead(model, CategoricalLikelihood(), layer="2", keep_weights=True, bias=False)


def test_held_out_rows_scale_precisions_only_where_they_contradict_the_evidence():
    x, y = classes(60)
    model = trained_classifier(x, y, 500)  # certain of every row of the fit
    other_x, other_y = classes(400, seed=1)
    head = BayesianHead(model, CategoricalLikelihood(), layer="2", keep_weights=True)
    by_evidence = copy.deepcopy(head).fit([(x, y)])
    head.fit([(x, y)], held_out=[(other_x[:300], other_y[:300]), (other_x[300:], other_y[300:])])
    shift = head.output.log_precision - by_evidence.output.log_precision
    torch.testing.assert_close(shift, shift[:1].expand(2), msg="one scale for all groups")
    new_x, new_y = classes(400, seed=2)

    def log_likelihood(one):
        p = one.predict(new_x, 400, torch.Generator().manual_seed(0)).mean
        return p.gather(-1, new_y.unsqueeze(-1)).log().mean()

    assert shift[0].abs() > 0.5
    assert log_likelihood(head) > log_likelihood(by_evidence)

    generator = torch.Generator().manual_seed(3)  # rows of the very model that the evidence is of
    x = torch.randn(300, 4, generator=generator, dtype=torch.float64)
    logits = x @ torch.randn(4, 3, generator=generator, dtype=torch.float64)
    y = torch.multinomial(torch.softmax(logits, -1), 1, generator=generator).squeeze(-1)
    plain = BayesianHead(nn.Identity(), CategoricalLikelihood()).fit([(x[:150], y[:150])])
    again = BayesianHead(nn.Identity(), CategoricalLikelihood())
    again.fit([(x[:150], y[:150])], held_out=[(x[150:], y[150:])])
    torch.testing.assert_close(again.output.log_precision, plain.output.log_precision)
    torch.testing.assert_close(again(x), plain(x), rtol=0.02, atol=0.02)
    with pytest.raises(ValueError, match="held_out must be None for Gaussian noise"):
        BayesianHead(Backbone().double()).fit([rows()], held_out=[rows()])


def test_later_rows_of_classes_are_nearly_as_good_as_all_at_once():
    x, y = classes(200)
    whole = BayesianHead(Backbone().double(), CategoricalLikelihood(), n_features=5, n_outputs=3)
    parts = copy.deepcopy(whole)
    whole.fit([(x, y)], learn_precision=False)
    parts.fit([(x[:100], y[:100])], learn_precision=False)
    before = (parts(x) - whole(x)).abs().mean()
    parts.update(x[100:], y[100:])
    assert (parts(x) - whole(x)).abs().mean() < 0.35 * before
    assert parts.output.count == whole.output.count == 200
    with pytest.raises(ValueError, match="y must be integer classes"):
        parts.update(x, y.double())
    with pytest.raises(TypeError, match="log_evidence needs Gaussian noise"):
        whole.log_evidence(x, y)


def test_classes_are_less_sure_away_from_the_rows():
    x, y = classes(200)
    head = BayesianHead(nn.Identity(), CategoricalLikelihood()).fit([(x, y)])
    near, far = (vmg.predict(head, scale * x, n_samples=300) for scale in (1.0, 5.0))
    assert far.epistemic.mean() > near.epistemic.mean()
    torch.testing.assert_close(near.mean.sum(-1), torch.ones(200).double())
    logits, covariance = head.posterior(x[:3])
    drawn = head.sample_functions(x[:3], 20_000, torch.Generator().manual_seed(0))[..., 0]
    assert ((drawn.mean(0) - logits[:, 0]).abs() < 5 * drawn.std(0) / 20_000**0.5).all()
    torch.testing.assert_close(torch.cov(drawn.T), covariance[0], rtol=0.1, atol=0.02 * covariance[0].max().item())


def test_an_ensemble_of_models_is_a_mixture():
    x, y = rows()
    heads = [BayesianHead(Backbone().double()).fit([(x, y)]) for _ in range(3)]
    single = [vmg.predict(head, x) for head in heads]
    found = vmg.predict(heads, x)
    means = torch.stack([one.mean for one in single])
    torch.testing.assert_close(found.mean, means.mean(0))
    second = torch.stack([one.std**2 + one.mean**2 for one in single]).mean(0)
    torch.testing.assert_close(found.std**2, second - found.mean**2)
    with pytest.raises(ValueError, match="model must be at least one module; got none"):
        vmg.predict([], x)

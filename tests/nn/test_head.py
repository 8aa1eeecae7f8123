"""The Bayesian output layer on any features: one pass or several, any module."""

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
from vmg.nn.head import BayesianHead


class Backbone(nn.Module):
    """A user's own features."""

    def __init__(self, n_in=3, n_features=5):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(n_in, 7), nn.Tanh(), nn.Linear(7, n_features), nn.SiLU())

    def forward(self, x):
        return self.layers(x)


def rows(n=40, c=1, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 3, generator=generator, dtype=torch.float64)
    noise = torch.randn(n, c, generator=generator, dtype=torch.float64)
    return x, x[:, :1] - x[:, 1:2].square() + 0.1 * noise


def make(likelihood=None):
    return BayesianHead(Backbone().double(), likelihood or GaussianLikelihood(1), n_features=5)


@pytest.mark.parametrize("n_outputs", [1, 2])
@pytest.mark.parametrize("likelihood", [GaussianLikelihood, FullCovarianceLikelihood])
def test_a_fit_in_batches_is_a_fit_at_once(n_outputs, likelihood):
    head = make(likelihood(n_outputs))
    other = copy.deepcopy(head)
    x, y = rows(c=n_outputs)
    head.fit([(x, y)])
    other.fit([(x[:7], y[:7]), (x[7:31], y[7:31]), (x[31:], y[31:])])
    torch.testing.assert_close(vmg.predict(head, x), vmg.predict(other, x), rtol=1e-4, atol=1e-8)
    torch.testing.assert_close(head.output.statistics, other.output.statistics, rtol=1e-12, atol=1e-12)


def test_an_update_is_a_fit_to_all_rows():
    head = make()
    other = copy.deepcopy(head)
    x, y = rows()
    head.fit([(x[:20], y[:20])], learn_precision=False).update(x[20:], y[20:])
    other.fit([(x, y)], learn_precision=False)
    torch.testing.assert_close(vmg.predict(head, x), vmg.predict(other, x), rtol=1e-10, atol=1e-10)
    head.fit([(x, y)], learn_precision=False)  # a new fit forgets
    assert head.output.count == 40


def test_weights_are_repeated_rows():
    head = make()
    other = copy.deepcopy(head)
    x, y = rows()
    weight = torch.arange(40).remainder(3)
    head.update(x, y, weight)
    other.update(x.repeat_interleave(weight, 0), y.repeat_interleave(weight, 0))
    torch.testing.assert_close(vmg.predict(head, x), vmg.predict(other, x))


def test_the_posterior_is_that_of_linear_regression():
    x, y = rows()
    y = (y - y.mean()) / y.std(correction=0)  # the prior's rate is in units of their variance
    head = make().fit([(x, y)])
    phi = torch.cat([head.features(x), torch.ones(40, 1).double()], -1).detach()
    expected = condition(row_statistics(phi, y), head.output.prior_precision().detach().double(), head.noise_prior)
    degrees = 2 * head.noise_prior.concentration + 40
    found, noise = vmg.predict(head, x, batch_size=7), expected.noise_variance * degrees / (degrees - 2)
    torch.testing.assert_close(found.mean, phi @ expected.mean)
    torch.testing.assert_close(found.aleatoric_std[0] ** 2, noise)
    torch.testing.assert_close(found.epistemic_std[:, 0] ** 2, expected.variance(phi) * noise)
    torch.testing.assert_close(found.std**2, found.aleatoric_std**2 + found.epistemic_std**2)
    assert (found.components[0][2] == degrees).all()
    torch.testing.assert_close(head(x), found.mean)


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
    torch.testing.assert_close(covariance[0].diagonal(), vmg.predict(head, x[:4]).epistemic_std[:, 0] ** 2)
    drawn = head.sample_functions(x[:4], 50_000, torch.Generator().manual_seed(0))[..., 0]
    spread = drawn.std(0)
    assert ((drawn.mean(0) - mean[:, 0]).abs() < 5 * spread / 50_000**0.5).all()
    error = 6 * torch.outer(spread, spread) / 50_000**0.5
    assert ((torch.cov(drawn.T) - covariance[0]).abs() < error).all()


# -- signatures, classes, ensembles -----------------------------------------------------------------------------------


def test_sizes_are_seen_from_the_rows():
    x, y = rows(c=2)
    head = BayesianHead(Backbone().double(), GaussianLikelihood(2))
    with pytest.raises(ValueError, match="the head has seen no rows yet"):
        head(x)
    head.fit([(x, y)])
    other = BayesianHead(head.features, n_features=5, n_outputs=2).fit([(x, y)])
    torch.testing.assert_close(vmg.predict(head, x), vmg.predict(other, x))
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
    head = BayesianHead(model, likelihood)
    x = torch.randn(20, 3)
    y = torch.randn(20, 2) if likelihood is None else torch.randint(2, (20,))
    torch.testing.assert_close(head.design(x)[:, :5], model[:2](x))
    torch.testing.assert_close(BayesianHead(model, likelihood, layer="2").design(x), head.design(x))
    assert head.fit([(x, y)])(x).shape == (20, 2)
    assert isinstance(model[2], nn.Linear), "the model stays as it is"
    with pytest.raises(ValueError, match=r"layer must name an nn.Linear of the model, one of \['0', '2'\]; got 'fc'"):
        BayesianHead(model, layer="fc")


def classes(n=60, seed=0):
    x, _ = rows(n, seed=seed)
    return x, (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long()


def saturated(n=60):
    """Rows that features separate: at the mode their curvature vanishes, so the covariance must feed back on it."""
    x, y = classes(n)
    return 4 * torch.cat([x, nn.functional.one_hot(y, 3).double()], -1), y


def expected(phi, output, n_draws=4_000):
    """E softmax and E[diag p − ppᵀ] of each row, by draws of the weights."""
    p = torch.softmax(phi @ output.sample_weights(n_draws, torch.Generator().manual_seed(1)), -1)
    return p.mean(0), torch.diag_embed(p.mean(0)) - torch.einsum("snk,snm->nkm", p, p) / n_draws


def dense(curvature):
    return torch.kron(curvature.classes, curvature.rows) / curvature.rows.trace()


@pytest.mark.parametrize("rows", [classes, saturated])
def test_a_head_of_classes_is_at_the_optimum_of_its_bound(rows):
    """The means solve a M = Φᵀ E[y − p], the partial traces are those of Σ E[diag p − ppᵀ] ⊗ φφᵀ, as written there."""
    x, y = rows()
    head = BayesianHead(nn.Identity(), CategoricalLikelihood(), n_outputs=3).fit([(x[:30], y[:30]), (x[30:], y[30:])])
    phi, output = head.design(x).detach(), head.output
    a = output.prior_precision().detach().double()
    p, curvature = expected(phi, output)
    pull = phi.mT @ (nn.functional.one_hot(y, 3).double() - p) - a.unsqueeze(-1) * output.mean
    precision = dense(output.statistics) + torch.diag(a.repeat(3))
    steps = torch.linalg.solve(precision, pull.mT.flatten())
    assert (steps.abs() * precision.diagonal().sqrt()).max() < 0.25, "the mean is within a quarter of a deviation"
    of_rows = torch.einsum("nkk,nd,ne->de", curvature, phi, phi)
    of_classes = torch.einsum("nkm,nd,nd->km", curvature, phi, phi)
    for found, whole in zip(output.statistics, (of_rows, of_classes), strict=True):
        assert (found - whole).norm() < 0.1 * whole.norm()
    assert (head(x).argmax(-1) == y).double().mean() > 0.7


def test_precisions_of_classes_are_best_for_the_posterior():
    """The derivative of the bound by log a is ½(nK − a Σ (‖m_i‖² + Σ_k S_k,ii)): zero at the optimum."""
    x, y = classes()
    output = BayesianHead(Backbone().double(), CategoricalLikelihood(), layer=None).fit([(x, y)]).output
    spread = output.posterior().class_covariances().diagonal(dim1=-2, dim2=-1).sum(0)
    energy = output.mean.square().sum(-1) + spread
    expected = torch.stack([3 * len(part) / part.sum() for part in energy.split(list(output.group_sizes))])
    torch.testing.assert_close(output.log_precision.double(), expected.log(), atol=0.05, rtol=0)


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
    head = BayesianHead(model).fit([(x, y)])
    torch.testing.assert_close(head(x), model(x).detach())
    head.update(x[:20], (y[:20] + 1) % 3)
    assert (head(x) - model(x)).abs().max() > 0.05
    again = BayesianHead(model, keep_weights=False).fit([(x, y)])
    assert (again(x) - model(x)).abs().max() > 0.05


def test_weights_around_trained_ones_spread_as_far_as_rows_allow():
    """Their precision is c ΦᵀΦ ⊗ mean (diag p − ppᵀ), a shift of all logits apart, and c costs 0.0075 nats a row."""
    x, y = classes(400)
    model = trained_classifier(x, y, 100)
    head = BayesianHead(model).fit([(x, y)])
    phi, p = head.design(x).detach(), model(x).softmax(-1).detach()
    certainty = torch.diag(p.mean(0)) - p.mT @ p / 400
    whole = torch.kron(certainty + certainty.trace() / 9, phi.mT @ phi)
    found = dense(head.output.statistics)
    scale = found.norm() / whole.norm()
    torch.testing.assert_close(found, scale * whole, rtol=1e-4, atol=1e-4 * found.abs().max().item())
    a, precisions = head.output.prior_precision().detach().double(), found.diagonal().view(3, -1).mean(0)
    torch.testing.assert_close(a[:-1], (1e-3 * precisions[:-1].mean()).expand(20), rtol=1e-4, atol=0)
    torch.testing.assert_close(a[-1], 1e-3 * precisions[-1], rtol=1e-4, atol=0)
    spread = vmg.predict(head, x, n_samples=2_000).mean
    cost = (p.gather(-1, y.unsqueeze(-1)).log() - spread.gather(-1, y.unsqueeze(-1)).log()).mean()
    assert 0.006 < cost < 0.009
    assert scale > 0.25


def test_held_out_rows_correct_how_sure_a_head_is_only_where_they_contradict_it():
    def noisy(n, seed):
        x, y = classes(n, seed)
        return x, torch.where(torch.rand(n, generator=torch.Generator().manual_seed(seed)) < 0.3, (y + 1) % 3, y)

    x, y = noisy(60, 0)
    model = trained_classifier(x, y, 2_000)  # certain of every row of the fit, whose labels are noisy
    other_x, other_y = noisy(400, 1)
    by_rows = BayesianHead(model).fit([(x, y)])
    head = BayesianHead(model).fit([(x, y)], held_out=[(other_x[:300], other_y[:300]), (other_x[300:], other_y[300:])])
    torch.testing.assert_close(head.output.log_precision, by_rows.output.log_precision)
    new_x, new_y = noisy(400, 2)

    def log_likelihood(one):
        p = one.sample_probabilities(new_x, 400, torch.Generator().manual_seed(0)).mean(0)
        return p.gather(-1, new_y.unsqueeze(-1)).log().mean()

    assert head.output.inflation != 1 or head.output.sharpness != 1
    assert log_likelihood(head) > log_likelihood(by_rows)

    generator = torch.Generator().manual_seed(3)  # rows of the very model that the evidence is of
    x = torch.randn(300, 4, generator=generator, dtype=torch.float64)
    logits = x @ torch.randn(4, 3, generator=generator, dtype=torch.float64)
    y = torch.multinomial(torch.softmax(logits, -1), 1, generator=generator).squeeze(-1)
    again = BayesianHead(nn.Identity()).fit(x[:150], y[:150], held_out=(x[150:], y[150:]))
    assert again.output.inflation == again.output.sharpness == 1


def test_rows_held_out_of_a_regression_correct_its_noise():
    x, y = rows(600)
    features = nn.Sequential(nn.Linear(3, 300), nn.Tanh()).double()
    exact = BayesianHead(features).fit(x[:300], y[:300])
    other = BayesianHead(features).fit(x[:300], 2 * y[:300], held_out=(x[300:], 10 * y[300:]))
    ratio = (10 * y[300:] - other(x[300:])).square().mean() / (2 * y[300:] - 2 * exact(x[300:])).square().mean()
    assert ratio > 5
    std = vmg.predict(other, x[300:]).std
    assert 0.7 < ((10 * y[300:] - other(x[300:])) / std).square().mean() < 1.4


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
    with pytest.raises(TypeError, match="log_evidence needs Gaussian noise"):
        whole.log_evidence(x, y)


def test_classes_are_less_sure_away_from_the_rows():
    x, y = classes(200)
    head = BayesianHead(nn.Identity(), CategoricalLikelihood()).fit([(x, y)])
    near, far = (vmg.predict(head, scale * x, n_samples=300) for scale in (1.0, 5.0))
    assert far.epistemic_std.mean() > near.epistemic_std.mean()
    torch.testing.assert_close(near.mean.sum(-1), torch.ones(200).double())
    logits, covariance = head.posterior(x[:3])
    drawn = head.sample_functions(x[:3], 20_000, torch.Generator().manual_seed(0))[..., 0]
    assert ((drawn.mean(0) - logits[:, 0]).abs() < 5 * drawn.std(0) / 20_000**0.5).all()
    torch.testing.assert_close(torch.cov(drawn.T), covariance[0], rtol=0.1, atol=0.02 * covariance[0].max().item())


@pytest.mark.parametrize("kind", [list, vmg.nn.HeadEnsemble])
def test_an_ensemble_of_models_is_a_mixture(kind):
    x, y = rows()
    heads = kind(BayesianHead(Backbone().double()).fit([(x, y)]) for _ in range(3))
    single = [vmg.predict(head, x) for head in heads]
    found = vmg.predict(heads, x)
    means = torch.stack([one.mean for one in single])
    torch.testing.assert_close(found.mean, means.mean(0))
    second = torch.stack([one.std**2 + one.mean**2 for one in single]).mean(0)
    torch.testing.assert_close(found.std**2, second - found.mean**2)
    with pytest.raises(ValueError, match="must be at least one module; got none"):
        vmg.predict(kind([]), x)


def test_an_ensemble_is_fitted_and_updated_head_by_head():
    x, y = rows()
    backbones = [Backbone().double() for _ in range(2)]
    ensemble = vmg.nn.HeadEnsemble(backbones, GaussianLikelihood(1)).fit(x, y).update(x, y)
    single = [BayesianHead(one, GaussianLikelihood(1)).fit(x, y).update(x, y) for one in backbones]
    torch.testing.assert_close(ensemble(x), torch.stack([head(x) for head in single]).mean(0))
    again = vmg.nn.HeadEnsemble(backbones, GaussianLikelihood(1))
    again.load_state_dict(ensemble.state_dict())
    torch.testing.assert_close(again(x), ensemble(x))


# -- units, refusals, modes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", [1e-4, 1e-2, 1e3])
def test_the_unit_of_the_targets_does_not_matter(unit):
    x, y = rows(120)
    torch.manual_seed(0)
    backbone = Backbone().double()
    plain, scaled = (vmg.predict(BayesianHead(backbone, layer=None).fit(x, k * y + k), x) for k in (1, unit))
    torch.testing.assert_close(scaled.mean / unit, plain.mean)
    torch.testing.assert_close(scaled.aleatoric_std / unit, plain.aleatoric_std)
    torch.testing.assert_close(scaled.epistemic_std / unit, plain.epistemic_std)


@pytest.mark.parametrize("unit", [1e-3, 16.0, 1e4])
@pytest.mark.parametrize("likelihood", [None, CategoricalLikelihood()])
def test_the_unit_of_the_features_does_not_matter(unit, likelihood):
    x, y = rows(120) if likelihood is None else classes(120)
    plain, scaled = (BayesianHead(nn.Identity(), likelihood).fit(k * x, y) for k in (1, unit))
    mean, covariance = plain.posterior(x[:9])
    other_mean, other = scaled.posterior(unit * x[:9])
    deviation = covariance.diagonal(dim1=-2, dim2=-1).mT.sqrt()
    assert ((mean - other_mean).abs() < 0.1 * deviation).all()
    assert ((covariance - other).abs() < 0.03 * deviation.mT.unsqueeze(-1) * deviation.mT.unsqueeze(-2)).all()


def gauss_head():
    x, y = rows(60)
    return BayesianHead(nn.Identity()).fit(x, y), x, y


def class_head():
    x, y = classes(60)
    return BayesianHead(nn.Identity()).fit(x, y), x, y


def with_nan(x):
    return torch.where(torch.arange(len(x)).unsqueeze(-1) == 1, torch.nan, x)


HOSTILE = {
    "NaN in x": (lambda x, y: (with_nan(x), y), "features must be finite"),
    "no rows": (lambda x, y: (x[:0], y[:0]), "features must be rows"),
    "another width": (lambda x, y: (x[:, :2], y), "rows must have 3 features, as before; got 2"),
    "three dimensions": (lambda x, y: (x.unsqueeze(0), y), "features must be rows"),
    "another length": (lambda x, y: (x, y[:5]), "y must be"),
    "negative weights": (lambda x, y: (x, y, -torch.ones(len(x))), "weight must be finite and not negative"),
    "too few weights": (lambda x, y: (x, y, torch.ones(3)), "weight must have one number for each of 60 rows"),
}


@pytest.mark.parametrize("make_head", [gauss_head, class_head])
@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_rows_are_refused_and_change_nothing(make_head, kind):
    head, x, y = make_head()
    before = copy.deepcopy(head.state_dict())
    spoil, message = HOSTILE[kind]
    for method in (head.update, head.fit):
        with pytest.raises(ValueError, match=message):
            method(*spoil(x, y))
    assert all(torch.equal(value, before[name]) for name, value in head.state_dict().items())


def test_targets_that_do_not_fit_are_refused():
    head, x, y = class_head()
    with pytest.raises(ValueError, match="y must be classes from 0 to 2; got 0 to 3"):
        head.update(x, y + (y == 2).long())
    with pytest.raises(ValueError, match="y must be classes from 0 to 2; got -1"):
        head.update(x, y - 1)
    with pytest.raises(ValueError, match=r"y must be integer classes, one per row; got torch\.float64"):
        head.update(x, y.double())
    with pytest.raises(ValueError, match="y must hold at least two classes; got 1 alone"):
        BayesianHead(nn.Identity()).fit(x, torch.ones(60, dtype=torch.long))
    numbers, x, y = gauss_head()
    with pytest.raises(ValueError, match="y must have 2 outputs"):
        make(GaussianLikelihood(2)).log_evidence(x, y)
    with pytest.raises(ValueError, match="n_samples must be at least 1; got 0"):
        numbers.sample_functions(x, 0)
    with pytest.raises(ValueError, match="y must be finite"):
        numbers.update(x, with_nan(y))
    with pytest.raises(ValueError, match=r"y must be numbers of shape \(60, 1\)"):
        numbers.update(x, y.expand(60, 2))
    with pytest.raises(TypeError, match=r"give fit\(x, y\)"):
        numbers.fit((x, y))
    with pytest.raises(ValueError, match="fit needs at least one row; got none"):
        numbers.fit([])
    with pytest.raises(TypeError, match="a batch must be"):
        numbers.fit([x])
    with pytest.raises(TypeError, match=r"likelihood must be an object, as GaussianLikelihood\(\)"):
        BayesianHead(nn.Identity(), GaussianLikelihood)


def test_the_model_is_in_evaluation_mode_inside_and_in_its_own_outside():
    model = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1)).double()
    model[1].eval()
    x, y = rows(60)
    head = BayesianHead(model).fit(x, y).update(x, y)
    state = copy.deepcopy(head.features.state_dict())
    for method in (head, lambda x: head.posterior(x).mean, lambda x: vmg.predict(head, x).mean):
        first, second = method(x), method(x)
        torch.testing.assert_close(first, second, rtol=0, atol=0)
    assert all(torch.equal(value, state[name]) for name, value in head.features.state_dict().items())
    assert [part.training for part in head.features] == [True, False, True, True]


@pytest.mark.parametrize("make_head", [gauss_head, class_head])
def test_a_head_is_fitted_and_updated_where_others_only_infer(make_head):
    with torch.inference_mode():
        head, x, y = make_head()
        head.update(x, y)
    assert head.posterior(x).covariance.isfinite().all()


def test_the_kind_of_target_and_the_last_layer_are_found():
    x, y = classes(100)
    model = trained_classifier(x, y)
    head = BayesianHead(model).fit(torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), 30))
    assert head.is_classifier
    assert head._layer == "2"
    assert (vmg.predict(head, x).mean.argmax(-1) == model(x).argmax(-1)).all()
    assert BayesianHead(nn.Sequential(nn.Linear(3, 1), nn.Tanh()).double()).fit(x, y)._layer is None
    tokens = BayesianHead(nn.Linear(3, 3).double()).fit(x.view(20, 5, 3), torch.where(y == 2, -100, y).view(20, 5))
    assert tokens.output.count == (y != 2).sum()
    by_name = BayesianHead(model).fit([{"input": x, "labels": y}])
    torch.testing.assert_close(by_name(x), head(x))


@pytest.mark.parametrize("keeps", [False, True])
def test_weights_of_rows_of_classes_are_repeated_rows(keeps):
    x, y = classes(1_500 if keeps else 40)
    model = trained_classifier(x, y, 50) if keeps else nn.Identity()
    index = torch.arange(len(x))
    weight = index.remainder(3) * (index.remainder(2) if keeps else 1)
    weighted = BayesianHead(model).fit(x, y, weight)
    repeated = BayesianHead(model).fit(x.repeat_interleave(weight, 0), y.repeat_interleave(weight, 0))
    torch.testing.assert_close(weighted(x), repeated(x), rtol=0.01, atol=0.01)
    variances = [head.posterior(x[:9]).covariance.diagonal(dim1=-2, dim2=-1) for head in (weighted, repeated)]
    torch.testing.assert_close(*variances, rtol=0.1, atol=0.01)


@pytest.mark.parametrize("make_head", [gauss_head, class_head])
def test_a_head_that_has_seen_nothing_takes_over_a_state(make_head):
    head, x, _ = make_head()
    fresh = BayesianHead(nn.Identity())
    fresh.load_state_dict(head.state_dict())
    torch.testing.assert_close(fresh(x), head(x), rtol=0, atol=0)
    x, y = classes(60)
    model = trained_classifier(x, y)
    fitted, fresh = BayesianHead(model).fit(x, y), BayesianHead(trained_classifier(x, y, 1))
    fresh.load_state_dict(fitted.state_dict())
    torch.testing.assert_close(fresh.posterior(x).covariance, fitted.posterior(x).covariance, rtol=0, atol=0)


def hamiltonian(phi, y, n_classes, a, n_draws=1_200, n_chains=20):
    """Draws [S, D, K] of softmax weights with the prior precision a, by Hamiltonian Monte Carlo."""
    generator = torch.Generator().manual_seed(0)
    labels = nn.functional.one_hot(y, n_classes).double()
    root = torch.linalg.cholesky(a * torch.eye(phi.shape[1]).double() + 0.25 * phi.mT @ phi)

    def gradient(w):
        return phi.mT @ (labels - torch.softmax(phi @ w, -1)) - a * w

    def energy(w, momentum):
        log_p = (torch.log_softmax(phi @ w, -1) * labels).sum((-2, -1)) - 0.5 * a * w.square().sum((-2, -1))
        return 0.5 * (momentum * torch.cholesky_solve(momentum, root)).sum((-2, -1)) - log_p

    w, kept = torch.zeros(n_chains, phi.shape[1], n_classes, dtype=torch.float64), []
    for number in range(n_draws + 300):
        start = root @ torch.randn(w.shape, generator=generator, dtype=torch.float64)
        moved, momentum = w, start + 0.125 * gradient(w)
        for _ in range(int(torch.randint(4, 12, (), generator=generator))):
            moved = moved + 0.25 * torch.cholesky_solve(momentum, root)
            momentum = momentum + 0.25 * gradient(moved)
        momentum = momentum - 0.125 * gradient(moved)
        accept = torch.rand(n_chains, generator=generator).log() < energy(w, start) - energy(moved, momentum)
        w = torch.where(accept[:, None, None], moved, w)
        if number >= 300:
            kept.append(w)
    return torch.cat(kept)


@pytest.mark.parametrize("n_classes", [2, 5])
def test_a_head_of_classes_is_as_unsure_as_its_exact_posterior(n_classes):
    generator = torch.Generator().manual_seed(0)
    phi = torch.randn(60, 5, generator=generator, dtype=torch.float64)
    logits = 1.5 * phi @ torch.randn(5, n_classes, generator=generator, dtype=torch.float64)
    y = torch.multinomial(torch.softmax(logits, -1), 1, generator=generator).squeeze(-1)
    head = BayesianHead(nn.Identity(), CategoricalLikelihood(), n_features=5, n_outputs=n_classes, bias=False)
    head.fit(phi, y, learn_precision=False)  # at the precision one
    x = 1.5 * torch.randn(100, 5, generator=generator, dtype=torch.float64)
    f, exact = head.sample_functions(x, 20_000, generator), x @ hamiltonian(phi, y, n_classes, 1.0)
    variances = [torch.softmax(one, -1).var(0).mean() for one in (f, exact)]
    assert abs(variances[0] / variances[1] - 1) < 0.1, "epistemic variances of the classes"
    deviations = [(one - one.mean(-1, keepdim=True)).std(0).mean() for one in (f, exact)]
    assert abs(deviations[0] / deviations[1] - 1) < 0.08, "standard deviations of the logits"
    mean = [torch.softmax(one, -1).mean(0) for one in (f, exact)]
    assert (mean[0] - mean[1]).abs().mean() < 0.01

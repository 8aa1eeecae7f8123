"""The contract of every likelihood, and what each refuses."""

import math

import pytest
import torch
from likelihood_cases import A, B, Bound, C, N, data, gaussian, heteroscedastic, over_conjugate, updated
from torch.func import functional_call

from reference import assert_close, normal
from vmg.likelihoods import (
    CategoricalLikelihood,
    FullCovarianceLikelihood,
    GaussianLikelihood,
    HeteroscedasticLikelihood,
    KnownNoiseLikelihood,
    Likelihood,
)

pytestmark = pytest.mark.usefixtures("double_precision")


LIKELIHOODS = {
    "gaussian": lambda: updated(GaussianLikelihood(C)),
    "gaussian, by gradient": lambda: gaussian(A, B),
    "input": heteroscedastic,
    "known": lambda: KnownNoiseLikelihood(0.3),
    "full": lambda: updated(FullCovarianceLikelihood(C)),
    "categorical": CategoricalLikelihood,
}
over_likelihoods = pytest.mark.parametrize("make", list(LIKELIHOODS.values()), ids=list(LIKELIHOODS))
over_regression = pytest.mark.parametrize(
    "make", [make for name, make in LIKELIHOODS.items() if name != "categorical"], ids=list(LIKELIHOODS)[:-1]
)


def data_for(likelihood, *leading, seed=0):
    """Network outputs and targets of the kind that the likelihood takes."""
    f, y = data(*leading, seed=seed)
    if isinstance(likelihood, HeteroscedasticLikelihood):
        f = torch.cat([f, normal(*leading, N, C, seed=seed + 3)], -1)
    return f, y.argmax(-1) if isinstance(likelihood, CategoricalLikelihood) else y


@over_likelihoods
def test_one_number_per_row_and_samples_lead(make):
    likelihood = make()
    assert isinstance(likelihood, Likelihood)
    f, y = data_for(likelihood, 4)
    log_prob = likelihood.expected_log_prob(f, y)
    assert log_prob.shape == (4, N)
    for s in range(4):
        assert_close(log_prob[s], likelihood.expected_log_prob(f[s], y[s]))
    assert likelihood.kl_divergence().shape == ()


@over_likelihoods
def test_gradcheck(make):
    likelihood = make()
    f, y = data_for(likelihood)
    f.requires_grad_()
    assert torch.autograd.gradcheck(lambda f: likelihood.expected_log_prob(f, y), f)


@pytest.mark.parametrize("name", ["gaussian, by gradient", "input", "input, fading in"])
def test_gradcheck_of_the_gamma_parameters(name):
    likelihood = heteroscedastic(limit=1.7) if name == "input" else LIKELIHOODS["gaussian, by gradient"]()
    if name == "input, fading in":
        likelihood = heteroscedastic(fade=(2, 6))
        likelihood.n_updates.fill_(4)
    f, y = data_for(likelihood)

    def terms(f, log_concentration, log_rate):
        names = {"likelihood.log_concentration": log_concentration, "likelihood.log_rate": log_rate}
        return functional_call(Bound(likelihood), names, (f, y))

    leaves = [leaf.clone().requires_grad_() for leaf in (f, A.log(), B.log())]
    assert torch.autograd.gradcheck(terms, leaves)


@over_likelihoods
def test_an_update_between_forward_and_backward_does_no_harm(make):
    gradients = []
    for update_first in (False, True):
        likelihood = make()
        f, y = data_for(likelihood)
        log_prob = likelihood.expected_log_prob(f.requires_grad_(), y).sum()
        if update_first:
            likelihood.update_(f.detach(), y, N)
        gradients.append(torch.autograd.grad(log_prob, f)[0])
    assert torch.equal(*gradients)


@over_likelihoods
def test_state_dict_round_trip(make):
    likelihood, restored = make(), make()
    f, y = data_for(likelihood, seed=5)
    likelihood.update_(f, y, 2 * N)
    restored.load_state_dict(likelihood.state_dict())
    for one in (likelihood, restored):  # the step size is part of the state
        one.update_(f[:2], y[:2], N)
    assert torch.equal(restored.expected_log_prob(f, y), likelihood.expected_log_prob(f, y))
    assert torch.equal(restored.kl_divergence(), likelihood.kl_divergence())
    assert type(likelihood).__name__ in repr(likelihood)


@over_likelihoods
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_change_of_precision(make, dtype):
    torch.set_default_dtype(torch.float64 if dtype == torch.float32 else torch.float32)
    likelihood = make_in_default_precision(make).to(dtype)
    f, y = data_for(likelihood)
    f, y = f.to(dtype), y.to(dtype) if y.is_floating_point() else y
    likelihood.update_(f, y, N)
    assert likelihood.expected_log_prob(f, y).dtype == dtype
    assert torch.isfinite(likelihood.kl_divergence()).all()


def make_in_default_precision(make):
    """The likelihood in the default dtype, though the data that it saw are float64."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    likelihood = make()
    torch.set_default_dtype(default)
    return likelihood.to(default)


# Errors


@over_regression
@pytest.mark.parametrize("shape", [(N,), (N, 1), (1, N, C), (N - 1, C), (C, N)])
def test_targets_must_have_the_shape_of_the_output(make, shape):
    likelihood = make()
    f, _ = data_for(likelihood)
    with pytest.raises(ValueError, match=rf"y must have the shape of the network's output, \({N}, {C}\); got"):
        likelihood.expected_log_prob(f, torch.zeros(shape))
    if likelihood.has_posterior:
        with pytest.raises(ValueError, match=rf"y must have the shape of the network's output, \({N}, {C}\); got"):
            likelihood.update_(f, torch.zeros(shape), N)


@pytest.mark.parametrize("n_outputs", [1, 2])
@over_conjugate
def test_the_number_of_outputs_is_checked(cls, n_outputs):
    f, y = data()
    with pytest.raises(ValueError, match=f"{n_outputs}.*{C}"):
        cls(n_outputs).expected_log_prob(f, y)


def test_known_scales_must_fit_the_outputs_and_classes_the_rows():
    f, y = data(c=1)
    with pytest.raises(ValueError, match="2"):
        KnownNoiseLikelihood(torch.tensor([0.3, 1.0])).expected_log_prob(f, y)
    for shape in ((N, 1), (N - 1,), (1, N)):
        with pytest.raises(ValueError, match=rf"y must have shape \({N},\), one class per row; got"):
            CategoricalLikelihood().expected_log_prob(torch.zeros(N, C), torch.zeros(shape, dtype=torch.long))


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan])
@pytest.mark.parametrize(
    "make",
    [
        *(lambda bad, cls=cls: cls(2, concentration=bad) for cls in (GaussianLikelihood, FullCovarianceLikelihood)),
        *(lambda bad, cls=cls: cls(2, rate=bad) for cls in (GaussianLikelihood, FullCovarianceLikelihood)),
        lambda bad: GaussianLikelihood(2, rate=torch.tensor([1.0, bad])),
        KnownNoiseLikelihood,
    ],
)
def test_arguments_must_be_positive(make, bad):
    with pytest.raises(ValueError, match="must be positive"):
        make(bad)

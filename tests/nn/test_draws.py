"""Draws of whole functions from any model."""

import pytest
import torch
from torch import nn

import vmg
from vmg.likelihoods import CategoricalLikelihood, FullCovarianceLikelihood, GaussianLikelihood, KnownNoiseLikelihood
from vmg.nn import MLP, MatrixGaussianLinear, bayesianize, fixed_draw


def make_model():
    """Convolution, norm and a head, with spread enough to see."""
    plain = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 2))
    return bayesianize(plain, n_data=100, initial_scale=0.5)


def test_inside_a_fixed_draw_a_model_is_a_function():
    model, x = make_model().eval(), torch.randn(4, 1, 6, 6)
    with fixed_draw(model):
        first = model(x)
        assert torch.equal(model(x), first)
        torch.testing.assert_close(model(x.flip(0)).flip(0), first)
    assert not torch.equal(model(x), first)


def test_several_draws_come_again_in_order():
    model, x = make_model().eval(), torch.randn(4, 1, 6, 6)
    with fixed_draw(model, 3) as draws:
        first = torch.stack([model(x) for _ in draws])
        again = torch.stack([model(x) for _ in draws])
        draws.use(1)
        assert torch.equal(model(x), first[1])
    assert len(draws) == 3
    assert torch.equal(first, again)
    assert not torch.equal(first[0], first[1])


def test_fixed_draws_nest_and_end_with_an_error():
    model, x = make_model().eval(), torch.randn(4, 1, 6, 6)
    with fixed_draw(model):
        outer = model(x)
        with fixed_draw(model):
            assert not torch.equal(model(x), outer)
        with pytest.raises(RuntimeError), fixed_draw(model):
            model(x[0, 0, 0])
        assert torch.equal(model(x), outer)
    assert model[0].matrices["weight"].drawn is None


def test_gradients_flow_through_a_fixed_draw():
    model = bayesianize(nn.Linear(3, 2))
    with fixed_draw(model):
        model(torch.randn(5, 3)).square().sum().backward()
    assert model.loc.grad.abs().min() > 0
    assert model.row.log_scale.grad.abs().min() > 0


def test_layers_called_twice_in_a_training_step_have_one_draw_inside_a_fixed_draw():
    class Difference(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = MatrixGaussianLinear(3, 1)

        def forward(self, x):
            return self.layer(x) - self.layer(x)

    model, x, y = Difference(), torch.randn(4, 3), torch.zeros(4, 1)
    assert vmg.elbo(model, KnownNoiseLikelihood(1.0), x, y, n_data=4).f.abs().min() > 0
    with fixed_draw(model):
        assert (vmg.elbo(model, KnownNoiseLikelihood(1.0), x, y, n_data=4).f == 0).all()


def test_a_model_without_bayesian_layers():
    with pytest.raises(ValueError, match="Linear holds no Bayesian layer"), fixed_draw(nn.Linear(2, 2)):
        pass


@pytest.mark.parametrize("prior", [False, True])
def test_sampled_functions_stay_the_same_and_leave_the_model_alone(prior):
    model, x = make_model().train(), torch.randn(4, 1, 6, 6)
    statistics = model[1].running_mean.clone()
    functions = vmg.sample_functions(model, 3, prior=prior)
    first = functions(x)
    assert first.shape == (3, 4, 2)
    with torch.no_grad():
        model[4].loc.add_(1)
    assert torch.equal(functions(x), first)
    torch.testing.assert_close(functions(x[1:2])[:, 0], first[:, 1])
    assert torch.equal(model[1].running_mean, statistics)
    assert model.training and model[1].training


def test_sampled_functions_of_an_mlp_and_their_gradients():
    for model in (MLP(3, (4,), 2), bayesianize(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)))):
        x = torch.randn(5, 3, requires_grad=True)
        values = vmg.sample_functions(model, 2)(x)
        assert values.shape == (2, 5, 2)
        values.sum().backward()
        assert x.grad.abs().sum() > 0
    with pytest.raises(ValueError, match="n_functions must be at least 1; got 0"):
        vmg.sample_functions(model, 0)


# -- predictions ------------------------------------------------------------------------------------------------------


def test_predictions_split_rows_and_add_up():
    model, x = make_model().train(), torch.randn(5, 1, 6, 6)
    torch.manual_seed(1)
    whole = vmg.predict(model, x, likelihood=KnownNoiseLikelihood(0.3), n_samples=6)
    torch.manual_seed(1)
    parts = vmg.predict(model, x, likelihood=KnownNoiseLikelihood(0.3), n_samples=6, batch_size=2)
    torch.testing.assert_close(whole, parts)
    assert model.training
    torch.testing.assert_close(whole.std.square(), whole.aleatoric_std.square() + whole.epistemic_std.square())
    torch.testing.assert_close(whole.aleatoric_std, torch.full((5, 2), 0.3))


def test_predictions_are_the_moments_of_function_draws():
    model, x = make_model().eval(), torch.randn(5, 1, 6, 6)
    torch.manual_seed(1)
    found = vmg.predict(model, x, n_samples=4)
    torch.manual_seed(1)
    with torch.no_grad(), fixed_draw(model, 4) as draws:
        drawn = torch.stack([model(x) for _ in draws])
    torch.testing.assert_close(found.mean, drawn.mean(0))
    torch.testing.assert_close(found.epistemic_std, drawn.std(0, correction=0))
    assert (found.aleatoric_std == 0).all()


class Keywords(nn.Module):
    """Takes keywords and gives a mapping, as models of Hugging Face do."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(10, 4), nn.Linear(4, 2)

    def forward(self, tokens, mask=None, scale=1.0):
        h = self.embed(tokens) * (1 if mask is None else mask.unsqueeze(-1))
        return {"hidden": h, "logits": scale * self.head(h.mean(1))}


def test_predictions_take_mappings_and_several_inputs():
    model = bayesianize(Keywords())
    tokens, mask = torch.randint(10, (5, 3)), torch.ones(5, 3)
    batch = {"tokens": tokens, "mask": mask, "scale": 2.0}
    assert vmg.predict(model, batch, n_samples=2, batch_size=2).mean.shape == (5, 2)
    assert vmg.predict(model, tokens, mask, n_samples=2, batch_size=2).mean.shape == (5, 2)
    y = torch.randint(2, (5,))
    assert torch.isfinite(vmg.elbo(model, CategoricalLikelihood(), batch, y, n_data=5).total)
    assert vmg.sample_functions(model, 2)(**batch).shape == (2, 5, 2)


def test_noise_that_was_never_updated_is_said():
    model, x = bayesianize(nn.Linear(3, 1)), torch.randn(5, 3)
    for likelihood in (GaussianLikelihood(), FullCovarianceLikelihood(1)):
        with pytest.warns(UserWarning, match="was never updated"):
            vmg.predict(model, x, likelihood=likelihood, n_samples=2)
        vmg.elbo(model, likelihood, x, torch.randn(5, 1), n_data=5)
        assert torch.isfinite(vmg.predict(model, x, likelihood=likelihood, n_samples=2).std).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_samples": 0}, "must be at least 1"),
        ({"batch_size": 0}, "must be at least 1"),
        ({"likelihood": CategoricalLikelihood}, "must be an object .*got the class CategoricalLikelihood"),
    ],
)
def test_wrong_arguments(options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        vmg.predict(bayesianize(nn.Linear(3, 1)), torch.randn(5, 3), **options)


def test_draws_of_narrow_models_are_averaged_in_single_precision():
    model, x = bayesianize(nn.Linear(3, 2)).bfloat16(), torch.randn(5, 3, dtype=torch.bfloat16)
    found = vmg.predict(model, x, likelihood=CategoricalLikelihood(), n_samples=50).mean
    torch.testing.assert_close(found.sum(-1), torch.ones(5), rtol=1e-5, atol=1e-5)


def test_outputs_without_a_tensor_to_take():
    class Pair(nn.Linear):
        def forward(self, x):
            return super().forward(x), x

    model = nn.Sequential(MLP(3, (), 3), Pair(3, 2))
    with pytest.raises(TypeError, match="the model must give a tensor"):
        vmg.predict(model, torch.randn(2, 3), n_samples=1)

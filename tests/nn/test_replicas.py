"""Several networks in one module: each is what it would be alone, in value, gradient and training."""

import copy
import io

import pytest
import torch
from torch import nn

import vmg
from reference import assert_close
from vmg.likelihoods import CategoricalLikelihood
from vmg.nn import Replicas, replicate

pytestmark = pytest.mark.usefixtures("double_precision")


class Residual(nn.Module):
    """A model of a user's own, with a parameter that no layer holds, and two inputs."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 2)
        self.shift = nn.Parameter(torch.randn(3))

    def forward(self, x, scale=None):
        h = x + torch.tanh(self.first(x)) + self.shift
        return {"logits": self.second(h if scale is None else h * scale)}


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.there, self.back = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
        self.back.weight = self.there.weight

    def forward(self, x):
        return self.back(torch.relu(self.there(x)))


def mlp():
    return nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 4, bias=False), nn.Tanh(), nn.Linear(4, 2))


def normed():
    return nn.Sequential(
        nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.GELU()), nn.LayerNorm(4, bias=False), nn.Linear(4, 2)
    )


def cnn():
    return nn.Sequential(
        *(nn.Unflatten(1, (1, 1, 3)), nn.Conv2d(1, 2, 3, padding=1), nn.BatchNorm2d(2), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d((1, 2)), nn.Flatten(), nn.Linear(4, 2)),
    )


def grouped():
    return nn.Sequential(
        *(nn.Unflatten(1, (3, 1)), nn.Conv1d(3, 6, 3, padding="same", groups=3, bias=False), nn.SiLU()),
        *(nn.Conv1d(6, 2, 3, padding=1, padding_mode="circular"), nn.Flatten()),
    )


def tokens():
    return nn.Sequential(nn.Unflatten(1, (3, 1)), nn.Linear(1, 4), nn.ReLU(), nn.Linear(4, 2), nn.Flatten())


def hooked():
    model = mlp()
    model[2].register_forward_hook(lambda module, inputs, output: output + 1)
    return model


class Repeated(nn.Module):
    """One layer under two names."""

    def __init__(self):
        super().__init__()
        self.there = self.back = nn.Linear(3, 3)

    def forward(self, x):
        return self.back(torch.relu(self.there(x)))


class Branching(nn.Module):
    """A branch that depends on the weights, which ``vmap`` cannot follow."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x):
        return self.layer(x) if self.layer.bias[0] > 0 else self.layer(-x)


def shared():
    layer = nn.Linear(3, 3)
    return nn.Sequential(layer, nn.ReLU(), layer)


MODELS = [mlp, normed, cnn, grouped, tokens, Residual, Tied, Repeated, Branching, hooked, shared]
every_model = pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)


def output(model, x):
    found = model(x)
    return found["logits"] if isinstance(found, dict) else found


def rows(n=12, seed=0):
    return torch.randn(n, 3, generator=torch.Generator().manual_seed(seed))


@every_model
def test_members_are_the_models_they_were_made_of(make):
    models, x = [make() for _ in range(3)], rows()
    together = Replicas(models)
    assert_close(together(x), torch.stack([output(model, x) for model in models]))
    for model, other in zip(models, together.members(), strict=True):  # batch norm has moved its statistics in both
        assert_close(output(model.eval(), x), output(other.eval(), x))
        assert_close(dict(other.state_dict()), dict(model.state_dict()))
        assert [name for name, _ in other.named_parameters()] == [name for name, _ in model.named_parameters()]
        assert all(parameter.is_contiguous() for parameter in other.parameters())


@every_model
def test_gradients_are_those_of_each_model(make):
    models, x = [make() for _ in range(2)], rows().requires_grad_()
    together = Replicas(models)
    together(x).square().sum().backward()
    of_x, x.grad = x.grad, None
    sum(output(model, x).square().sum() for model in models).backward()
    assert_close(of_x, x.grad)
    moved = copy.deepcopy(together)
    with torch.no_grad():
        moved.weights -= together.weights.grad
        for model in models:
            for parameter in model.parameters():
                parameter -= parameter.grad
    for model, other in zip(models, moved.members(), strict=True):
        assert_close(dict(other.named_parameters()), dict(model.named_parameters()))


@pytest.mark.parametrize("n_rows", [1, 6, 7])
@pytest.mark.parametrize("seen_by", [1, 2, 3])
def test_rows_are_dealt_in_turn(n_rows, seen_by):
    models, x = [mlp() for _ in range(3)], rows(n_rows)
    found = Replicas(models)(x, seen_by=seen_by)
    assert found.shape == (seen_by, n_rows, 2)
    n_own = -(-seen_by * n_rows // 3)
    for place in range(seen_by * n_rows):
        time, row = divmod(place, n_rows)
        assert_close(found[time, row], models[place // n_own](x[row : row + 1])[0])


def test_every_input_with_rows_is_dealt():
    models, x, scale = [Residual() for _ in range(2)], rows(4), rows(4, seed=1)
    together = Replicas(models)
    expected = torch.cat([models[0](x[:2], scale[:2])["logits"], models[1](x[2:], scale[2:])["logits"]])
    assert_close(together(x, scale=scale, seen_by=1)[0], expected)
    assert_close(together(x, scale, seen_by=1)[0], expected)
    assert_close(together(x, scale=torch.tensor(2.0))[1], models[1](x, 2.0)["logits"])


def test_layers_of_all_members_are_called_together():
    """One by one only where a module has hooks or statistics, or ``vmap`` could not transform it."""
    one_by_one = {}
    for make in (mlp, hooked, cnn, Branching):
        together = replicate(make(), 2) if make is not Branching else Replicas([Branching(), Branching()])
        together(rows())
        one_by_one[make] = [step.one_by_one for step in together._steps]
        assert len(list(together.parameters())) == 1
    assert one_by_one[mlp] == [False] * 5
    assert one_by_one[hooked] == [False, False, True, False, False]
    assert one_by_one[cnn] == [False, False, True, False, False, False, False]
    assert one_by_one[Branching] == [True]


def test_arguments_of_another_length_are_not_dealt():
    class Shifted(nn.Linear):
        def forward(self, x, shift):
            return super().forward(x) + shift.sum()

    models, x, shift = [Shifted(3, 2) for _ in range(2)], rows(6), torch.arange(4.0)
    for seen_by in (1, 2):
        assert_close(Replicas(models)(x, shift, seen_by=seen_by)[0][0], models[0](x, shift)[0])


def test_state_copies_and_pickles():
    together, other, x = replicate(cnn(), 2), replicate(cnn(), 2), rows()
    together(x)  # moves statistics
    other.load_state_dict(together.state_dict())
    buffer = io.BytesIO()
    torch.save(together, buffer)
    buffer.seek(0)
    expected = together.eval()(x)
    for copied in (other, copy.deepcopy(together), torch.load(buffer, weights_only=False)):
        assert_close(copied.eval()(x), expected)
    torch.testing.assert_close(together.float()(x.float()), expected.float(), rtol=1e-5, atol=1e-6)


def test_modes_reach_the_layers():
    together, x = replicate(nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5)), 2), rows()
    assert (together(x) == 0).any()
    assert not (together.eval()(x) == 0).any()
    assert not together.members()[0].training


def test_frozen_layers_stay():
    model = mlp()
    model[0].requires_grad_(False)
    together = replicate(model, 3, start_scale=2.0)
    for member in together.members():
        assert_close(member[0].weight, model[0].weight)
        assert not member[0].weight.requires_grad
        assert member[2].weight.requires_grad
        assert not torch.equal(member[2].weight, model[2].weight)
    assert together.weights.shape == (3, 4 * 5 + 4 * 2 + 2)


def test_starts_differ_and_are_scaled():
    torch.manual_seed(0)
    plain = replicate(mlp(), 2)
    torch.manual_seed(0)
    scaled = replicate(mlp(), 2, start_scale=3.0)
    for one, other in zip(plain.members(), scaled.members(), strict=True):
        assert_close(3 * one[0].weight, other[0].weight)
        assert_close(one[0].bias, other[0].bias)
    assert not torch.equal(*plain.weights)
    embedding = nn.Embedding(4, 3)
    torch.manual_seed(0)
    scaled = replicate(embedding, 1, start_scale=3.0)
    torch.manual_seed(0)
    embedding.reset_parameters()
    assert_close(scaled.weights, embedding.weight.flatten()[None])


def test_an_exported_graph_gives_the_same():
    together, x = replicate(mlp(), 2).eval(), rows()
    program = torch.export.export(together, (x,))
    assert_close(program.module()(x), together(x))


def test_what_members_disagree_about_is_epistemic():
    together, x = replicate(mlp(), 4, start_scale=3.0), rows()
    found = vmg.predict(together, x, likelihood=CategoricalLikelihood(), batch_size=5)
    p = torch.softmax(together(x), -1)
    assert_close(found.mean, p.mean(0))
    assert_close(found.epistemic_std, p.std(0, correction=0))
    assert_close(found.std**2, p.mean(0) * (1 - p.mean(0)))
    assert_close(vmg.predict(together, x).mean, together(x).mean(0))
    assert together.training


def test_a_head_for_every_member():
    together, x, y = replicate(mlp(), 2), rows(), torch.arange(12) % 2
    heads = vmg.nn.HeadEnsemble(together, layer="4").fit(x, y)
    assert vmg.predict(heads, x).mean.shape == (12, 2)


def test_refusals():
    with pytest.raises(ValueError, match="at least one module; got none"):
        Replicas([])
    with pytest.raises(ValueError, match="same names and shapes"):
        Replicas([nn.Linear(2, 3), nn.Linear(2, 4)])
    with pytest.raises(ValueError, match="weights to train"):
        Replicas([nn.ReLU()])
    with pytest.raises(ValueError, match="of one dtype"):
        Replicas([nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).float())])
    with pytest.raises(ValueError, match="plain ones"):
        Replicas([vmg.nn.MatrixGaussianLinear(2, 3)])
    with pytest.raises(ValueError, match="n_members must be at least 1; got 0"):
        replicate(mlp(), 0)
    with pytest.raises(ValueError, match="start_scale must be positive; got 0"):
        replicate(mlp(), 2, start_scale=0)
    with pytest.raises(ValueError, match=r"reset_parameters; got a model \(Residual\)"):
        replicate(Residual(), 2)
    with pytest.raises(ValueError, match="seen_by must be between 1 and 2, the number of members; got 3"):
        replicate(mlp(), 2)(rows(), seen_by=3)
    with pytest.raises(ValueError, match="a tensor with rows"):
        replicate(mlp(), 2)(torch.tensor(1.0))

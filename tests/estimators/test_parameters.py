"""Parameters of the estimators: what may be given by position, and that nothing else is set before a fit."""

import inspect

import pytest

from vmg import TableClassifier, TableRegressor
from vmg.variational import VMGClassifier, VMGRegressor
from vmg.variational.estimators import VMGEstimator
from vmg_paper.baselines import MCDropout

every_kind = pytest.mark.parametrize(
    "kind", [TableRegressor, TableClassifier, VMGRegressor, VMGClassifier], ids=lambda kind: kind.__name__
)


@every_kind
def test_the_network_may_be_given_by_position_and_all_else_by_name(kind):
    parameters = inspect.signature(kind).parameters
    by_position = [name for name, one in parameters.items() if one.kind is one.POSITIONAL_OR_KEYWORD]
    points = ["n_pseudo"] if issubclass(kind, VMGEstimator) else []
    assert by_position == ["hidden_layer_sizes", "activation", *points]
    assert set(parameters) - set(by_position) == {
        name for name, one in parameters.items() if one.kind is one.KEYWORD_ONLY
    }
    model = kind((3,), "tanh", random_state=7)
    assert (model.hidden_layer_sizes, model.activation, model.random_state) == ((3,), "tanh", 7)


@every_kind
def test_an_unfitted_estimator_holds_its_parameters_alone(kind):
    model = kind()
    assert vars(model) == model.get_params(deep=False)
    assert all(name in (kind.__doc__ or "") for name in model.get_params())


def test_a_baseline_is_a_parameter():
    model = MCDropout(rate=0.2).regressor((4,), max_iter=3)
    assert model.get_params(deep=False)["baseline"] == MCDropout(rate=0.2)
    assert vars(model) == model.get_params(deep=False)

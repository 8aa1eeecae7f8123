"""The objective and its gradient at a minibatch: through autograd for any network, directly for those that allow it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from vmg.objective import ElboTerms, Objective
from vmg.training.direct_step import DirectStep
from vmg.training.grouped_parameters import GroupedParameters
from vmg.training.rows import Batch

__all__ = ["AutogradStep", "Step", "make_step"]


class Step(Protocol):
    """Takes the objective at a minibatch and leaves the gradient of its negative in the grouped parameters."""

    def __call__(self, batch: Batch, kl_weight: float) -> ElboTerms: ...


def make_step(objective: Objective, parameters: GroupedParameters, shape: Sequence[int]) -> Step:
    """The fastest step that a network and likelihood allow, for minibatches whose x has this shape."""
    if DirectStep.allows(objective.network, len(shape)):
        return DirectStep(objective, parameters, shape)
    return AutogradStep(objective, parameters)


class AutogradStep:
    """Any network and likelihood."""

    def __init__(self, objective: Objective, parameters: GroupedParameters) -> None:
        self._objective, self._parameters = objective, parameters

    def __call__(self, batch: Batch, kl_weight: float = 1.0) -> ElboTerms:
        terms = self._objective.evaluate(*batch, kl_weight)
        self._parameters.zero_grad()
        (-terms.total.sum()).backward()  # replicas are independent: a sum leaves each one's gradient as it is
        return ElboTerms(*(term.detach() for term in terms if term is not None))

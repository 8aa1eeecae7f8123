"""How large a network a table gets, and how long it trains, where the user does not say."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from vmg.fit.members import TrainingPlan

__all__ = ["Size", "choose_size"]

MANY_ROWS = 2_000


@dataclass(frozen=True)
class Size:
    """The hidden layers, the ensemble and its training."""

    hidden: tuple[int, ...]
    activations: tuple[str, ...]
    n_members: int
    plan: TrainingPlan

    def changed(self, **asked: Any) -> Size:
        """The same with what the user asks for; None asks for nothing."""
        given = {name: value for name, value in asked.items() if value is not None}
        training = ("max_steps", "patience", "batch_rows", "rate")
        plan: dict[str, Any] = {name: given.pop(name) for name in training if name in given}
        if "max_steps" in plan:  # a short training has a short end
            plan["refit_steps"] = min(self.plan.refit_steps, plan["max_steps"])
        if given.get("n_members") == 1:  # one network has one activation
            given.setdefault("activations", self.activations[:1])
        return replace(self, **given, plan=replace(self.plan, **plan))


FEW = Size((100,), ("relu", "tanh"), 12, TrainingPlan(max_steps=400, patience=40, refit_steps=40, batch_rows=4096))
"""One wide layer is nearest to a Gaussian process, and many members share the work of judging few rows."""

MANY = Size((50, 50), ("relu", "tanh"), 6, TrainingPlan(max_steps=1500, patience=100, refit_steps=100, batch_rows=2048))
"""With many rows two layers learn more than one, and fewer members are enough."""


MANY_CLASSIFIED = Size(
    (100,), ("relu", "tanh"), 8, TrainingPlan(max_steps=600, patience=60, refit_steps=60, batch_rows=2048)
)
"""One wide layer was better than two on most tables of classes."""


def choose_size(n_rows: int, *, classes: bool = False) -> Size:
    """Choose by the number of rows; sizes were chosen on held-out training rows of the development tables."""
    if n_rows < MANY_ROWS:
        return FEW
    return MANY_CLASSIFIED if classes else MANY

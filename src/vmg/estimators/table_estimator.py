"""Parameters of both table estimators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from sklearn.utils._param_validation import Interval, StrOptions

from vmg.estimators.base import Array, EstimatorBase
from vmg.fit.design import Size, Standardiser, choose_size
from vmg.nn.mlp import ACTIVATIONS
from vmg.training import Callback, History, Progress

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["TableEstimator"]


@dataclass(repr=False, eq=False)
class TableEstimator(EstimatorBase):
    """Parameters and fitting of both estimators; see :class:`TableRegressor` for what each parameter means."""

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "hidden_layer_sizes": [StrOptions({"auto"}), "array-like", Interval(Integral, 1, None, closed="left")],
        "activation": [StrOptions({"auto", *ACTIVATIONS})],
        "n_members": [StrOptions({"auto"}), Interval(Integral, 1, None, closed="left")],
        "batch_size": [StrOptions({"auto"}), Interval(Integral, 1, None, closed="left")],
        "learning_rate_init": [Interval(Real, 0, None, closed="neither")],
        "max_iter": [StrOptions({"auto"}), Interval(Integral, 1, None, closed="left")],
        "n_iter_no_change": [StrOptions({"auto"}), Interval(Integral, 1, None, closed="left")],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
    }

    hidden_layer_sizes: int | Sequence[int] | str = "auto"
    activation: str = "auto"
    _: KW_ONLY
    n_members: int | str = "auto"
    batch_size: int | str = "auto"
    learning_rate_init: float = 0.03
    max_iter: int | str = "auto"
    n_iter_no_change: int | str = "auto"
    random_state: int | np.random.RandomState | None = None
    verbose: bool | int = False

    input_scaling_: Standardiser = field(init=False)
    history_: History = field(init=False)
    ensemble_: Any = field(init=False)
    n_features_in_: int = field(init=False)
    seed_: int = field(init=False)

    _known_scaling: tuple[Standardiser, ...] = field(init=False, default=())  # of the present call of fit

    @property
    def n_iter_(self) -> int:
        """Optimiser steps of the last fit, under scikit-learn's name."""
        return self.n_steps_

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        callbacks: Sequence[Callback] = (),
        scaling: Sequence[Standardiser] = (),
    ) -> Self:
        """Fit to rows X [N, D] with targets y; an interrupted or refused fit leaves the model as it was.

        Parameters
        ----------
        X : array-like, sparse matrix or data frame [N, D]
            Numbers, none missing. Scaling is done inside.
        y : array-like [N] or [N, C]
            Targets in any unit, or classes.
        sample_weight : array-like [N], optional
            A row with weight 2 counts as two rows.
        callbacks : sequence of callable
            Called with a :class:`~vmg.training.Progress` as training goes; one that returns True ends it.
        scaling : sequence of Standardiser, optional
            Units of the inputs, and of numeric targets, where more rows than these are known to say them.

        Returns
        -------
        self
        """
        self._known_scaling = tuple(scaling)
        try:
            return super().fit(X, y, sample_weight, callbacks=callbacks)
        finally:
            del self._known_scaling

    def _size(self, n_rows: int, *, classes: bool = False) -> Size:
        """The network and its training that parameters and table ask for."""
        return self.adjusted(choose_size(n_rows, classes=classes))

    def adjusted(self, size: Size) -> Size:
        """A size with what parameters ask for."""
        return size.changed(
            hidden=_sizes(self.hidden_layer_sizes),
            activations=None if self.activation == "auto" else (self.activation,),
            n_members=None if self.n_members == "auto" else int(self.n_members),
            max_steps=None if self.max_iter == "auto" else int(self.max_iter),
            batch_rows=None if self.batch_size == "auto" else int(self.batch_size),
            rate=float(self.learning_rate_init),
            patience=None if self.n_iter_no_change == "auto" else 10 * int(self.n_iter_no_change),
        )

    @property
    def feature_relevance_(self) -> Array:
        """How much each input can move the first layer, [D], largest 1."""
        relevance = self.ensemble_.relevance()
        return relevance / max(relevance.max(), np.finfo(np.float64).tiny)

    def _listeners(self) -> list[Callback]:
        return [*self._callbacks, *([print_progress] if self.verbose else [])]


def _sizes(given: int | Sequence[int] | str) -> tuple[int, ...] | None:
    if isinstance(given, str):
        return None
    return (int(given),) if isinstance(given, Integral) else tuple(int(size) for size in np.atleast_1d(given))


def print_progress(progress: Progress) -> None:
    """Print one line about training."""
    print(f"step {progress.step:>6}  log posterior {progress.elbo:9.4f} a row  {progress.seconds:6.1f} s")

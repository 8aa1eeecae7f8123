"""Classes of a model that is too sure, or not sure enough: its outputs divided by a temperature from held-out rows."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from vmg.likelihoods.base import Likelihood
from vmg.likelihoods.categorical import CategoricalLikelihood

__all__ = ["TemperedCategoricalLikelihood"]

N_STEPS = 12  # from one, up and down, each a factor of √2: temperatures that are looked at first


class TemperedCategoricalLikelihood(Likelihood):
    """y ~ Categorical(softmax(f / T)) for integer classes y [..., B], with one temperature T (Guo et al. 2017).

    A network that is trained by smoothed labels, or decays much, has good features and says too little of its classes.
    One trained for long says too much. Neither is seen on rows of the training.

    Parameters
    ----------
    temperature : float
        Where to start; ``fit`` finds it.

    Examples
    --------
    >>> likelihood = TemperedCategoricalLikelihood().fit(together(x_held_out), y_held_out)  # doctest: +SKIP
    >>> vmg.predict(together, x, likelihood=likelihood)                                      # doctest: +SKIP
    """

    temperature: Tensor

    def __init__(self, temperature: float = 1.0) -> None:
        super().__init__()
        if not temperature > 0:
            raise ValueError(f"temperature must be positive; got {temperature}")
        self.register_buffer("temperature", torch.tensor(float(temperature)))
        self._plain = CategoricalLikelihood()

    @torch.no_grad()
    def fit(self, f: Tensor, y: Tensor) -> TemperedCategoricalLikelihood:
        """Find T from rows that trained nothing, at the best log-likelihood of the mean probabilities.

        Args:
            f: outputs [N, C] of one network, or [..., N, C] of members or draws, which count alike.
            y: classes [N].
        """
        from scipy import optimize  # late: layers need nothing but PyTorch

        if f.dim() < 2 or y.shape != f.shape[-2:-1] or y.is_floating_point() or not len(y):
            raise ValueError(
                f"y must be integer classes, one for each of the rows of f [..., N, C]; got shapes {tuple(y.shape)} "
                f"of {y.dtype} and {tuple(f.shape)}"
            )
        f = f.double().reshape(-1, *f.shape[-2:])
        if not torch.isfinite(f).all():
            raise ValueError("f must be finite; got values that are not")

        def loss(log_temperature: float) -> float:
            log_p = torch.log_softmax(f / math.exp(log_temperature), -1)
            own = log_p.gather(-1, y.expand(len(f), -1).unsqueeze(-1)).squeeze(-1)  # [members, N]
            return (math.log(len(f)) - torch.logsumexp(own, 0)).mean().item()

        grid = [step * math.log(2) / 2 for step in range(-N_STEPS, N_STEPS + 1)]
        losses = [loss(point) for point in grid]
        best = min(range(1, len(grid) - 1), key=losses.__getitem__)
        found = optimize.minimize_scalar(loss, bounds=(grid[best - 1], grid[best + 1]), method="bounded")
        self.temperature.fill_(math.exp(found.x))
        return self

    def expected_log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        return self._plain.expected_log_prob(f / self.temperature, y)

    def moments(self, f: Tensor) -> tuple[Tensor, Tensor]:
        return self._plain.moments(f / self.temperature)

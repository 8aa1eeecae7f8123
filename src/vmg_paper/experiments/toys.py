"""Fits of the figures' toy problems, their predictive bands, and distances to the true band."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vmg.likelihoods import KnownNoiseLikelihood
from vmg.nn.mlp import MLP
from vmg.objective import elbo
from vmg.prediction import Prediction, draw_functions
from vmg.training import cosine, train
from vmg_paper.baselines import HMCRegressor, PBPRegressor
from vmg_paper.baselines.hamiltonian import bulk_ess, split_rhat
from vmg_paper.baselines.hmc import LayerPrecisions

__all__ = [
    "Band",
    "Distance",
    "MakeNetwork",
    "Settings",
    "Toy",
    "ToyResult",
    "distance",
    "fit_network",
    "paper_network",
]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Band:
    """One method's predictive distribution along a line, in the target's units: all [N]."""

    name: str
    x: Array
    mean: Array
    std: Array
    epistemic_std: Array
    truth: str = ""
    """The name of the band that this one approximates; empty for a truth itself."""
    note: str = ""
    rhat: float | None = None
    """How well the chains of a truth agree at the data."""

    @classmethod
    def of(cls, name: str, x: Array, prediction: Prediction, **fields: Any) -> Band:
        """The band of a prediction at x."""
        return cls(name, x, prediction.mean, prediction.std, prediction.epistemic_std, **fields)


@dataclass(frozen=True)
class Distance:
    """Mean absolute differences to a true band, where there are data and where there are none."""

    name: str
    truth: str
    mean_inside: float
    mean_outside: float
    log_std_inside: float
    log_std_outside: float


def distance(band: Band, truth: Band, inside: NDArray[np.bool_]) -> Distance:
    """How far ``band`` is from ``truth``: means in units of the true band's width, widths as |log ratio|.

    So 1 is a mean that is one true standard deviation off, and 0.7 a width that is twice or half the true one.
    """
    mean = np.abs(band.mean - truth.mean) / truth.std
    log_std = np.abs(np.log(band.std / truth.std))
    parts = (part[where] for part in (mean, log_std) for where in (inside, ~inside))
    return Distance(band.name, truth.name, *(float(part.mean()) for part in parts))


@dataclass(frozen=True)
class ToyResult:
    """All that a figure shows."""

    x: Array  # data, [N]
    y: Array
    target: Callable[[Array], Array]  # the function behind the data
    bands: list[Band]
    truths: list[Band]
    ranges: Sequence[tuple[float, float]]  # where there are data

    def distances(self) -> list[Distance]:
        """Distance of every band to its truth."""
        truths = {band.name: band for band in self.truths}
        return [distance(band, truths[band.truth], self.inside(band.x)) for band in self.bands]

    def inside(self, x: Array) -> NDArray[np.bool_]:
        """Whether x is where the data are."""
        return np.logical_or.reduce([(low <= x) & (x <= high) for low, high in self.ranges])

    def document(self) -> dict[str, Any]:
        """The numbers of the figure, for a machine."""
        return {
            "x": self.x.tolist(),
            "y": self.y.tolist(),
            "distances": [vars(one) for one in self.distances()],
            "bands": [
                {
                    "name": band.name,
                    "truth": band.truth,
                    "note": band.note,
                    **{key: getattr(band, key).tolist() for key in ("x", "mean", "std", "epistemic_std")},
                }
                for band in (*self.bands, *self.truths)
            ],
        }


MakeNetwork = Callable[[Sequence[int]], MLP]
"""A network with the given ``batch_shape``."""

BOUND_DRAWS = 200  # of the posterior, to tell one start's bound from another's


def paper_network(hidden: Sequence[int], n_pseudo: Sequence[int], batch_shape: Sequence[int], **options: Any) -> MLP:
    """Matrix Gaussian layers with few pseudo-points; the paper's 0.2 is a limit on √α."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="n_pseudo should be <")  # the paper's own choice
        return MLP(1, hidden, 1, n_pseudo=n_pseudo, max_noise=0.2, batch_shape=batch_shape, **options)


@dataclass(frozen=True)
class Settings:
    """How much work each method of a figure may do."""

    n_steps: int = 3_000
    n_draws: int = 200  # as in the paper
    n_starts: int = 16
    """Starts of every network, PBP's too: the one with the best bound, or evidence, on the training rows is kept."""
    n_epochs: int = 200
    """Epochs of PBP. Its paper's 40 are 800 updates on so few rows, and its band is then still far from the data."""
    n_chains: int = 16
    n_warmup: int = 400
    n_kept: int = 300
    n_points: int = 241


@dataclass(frozen=True)
class FittedToy:
    """Replicas of a network in standard units, and each one's bound, a sum over rows [n_starts]."""

    network: MLP
    bounds: Array
    noise_scale: float
    x_mean: float
    x_scale: float
    y_mean: float
    y_scale: float

    def predict(self, x: Array, n_draws: int, seed: int) -> Prediction:
        """The predictive distribution of the start with the best bound at x [M], in the target's units."""
        rows = torch.as_tensor((x - self.x_mean) / self.x_scale).unsqueeze(-1)
        functions = draw_functions(self.network, rows, n_draws, seed)[:, int(self.bounds.argmax())]
        gaussian = np.full((1, 1, 1), np.inf)
        return Prediction(
            functions.numpy() * self.y_scale + self.y_mean, np.full((1, 1, 1), self.noise_scale), gaussian
        )


def fit_network(
    make: MakeNetwork, x: Array, y: Array, *, noise_scale: float, n_steps: int, n_starts: int, seed: int
) -> FittedToy:
    """Train ``n_starts`` networks as one on x, y [N] in standard units, the noise known in the target's own."""
    generator = torch.Generator().manual_seed(seed)
    network = make((n_starts,))
    network.reset_parameters(generator)
    x_mean, x_scale, y_mean, y_scale = float(x.mean()), float(x.std()), float(y.mean()), float(y.std())

    def column(values: Array) -> Tensor:
        """[n_starts, N, 1]."""
        return torch.as_tensor(values, dtype=torch.float32).unsqueeze(-1).repeat(n_starts, 1, 1)

    likelihood = KnownNoiseLikelihood(noise_scale / y_scale)
    rows = column((x - x_mean) / x_scale), column((y - y_mean) / y_scale)
    train(
        network,
        likelihood,
        *rows,
        n_steps=n_steps,
        batch_size=len(x),
        batch_shape=(n_starts,),
        learning_rate=0.02,
        schedule=cosine,
        report_every=max(1, n_steps // 10),
        generator=generator,
    )
    with torch.no_grad():
        draws = [elbo(network, likelihood, *rows, n_data=len(x)).total for _ in range(BOUND_DRAWS)]
    bounds = len(x) * torch.stack(draws).mean(0).double().numpy()
    return FittedToy(network, bounds, noise_scale, x_mean, x_scale, y_mean, y_scale)


@dataclass(frozen=True)
class Toy:
    """Rows of a toy problem whose noise is known, and how much work a method may do on them."""

    X: Array  # [N, 1]
    y: Array  # [N]
    noise_scale: float
    range: tuple[float, float]  # that is drawn
    settings: Settings
    seed: int
    tell: Callable[[str], None]
    """Hears the name of each method as it starts."""

    @property
    def grid(self) -> Array:
        return np.linspace(*self.range, self.settings.n_points)

    def network_band(self, name: str, make: MakeNetwork, truth: str) -> Band:
        """The band of the best of several variational networks."""
        self.tell(name)
        s = self.settings
        work = {"n_steps": s.n_steps, "n_starts": s.n_starts, "seed": self.seed}
        fitted = fit_network(make, self.X[:, 0], self.y, noise_scale=self.noise_scale, **work)
        return Band.of(name, self.grid, fitted.predict(self.grid, s.n_draws, self.seed), truth=truth)

    def pbp_band(self, hidden: Sequence[int], truth: str) -> Band:
        """The band of probabilistic backpropagation."""
        self.tell("PBP")
        s, noise = self.settings, self.noise_scale
        pbp = PBPRegressor(hidden, s.n_epochs, noise_scale=noise, n_starts=s.n_starts, random_state=self.seed)
        return Band.of("PBP", self.grid, pbp.fit(self.X, self.y).pred_dist(self.grid[:, None]), truth=truth)

    def true_band(self, name: str, hidden: Sequence[int], activation: str, prior: float | LayerPrecisions) -> Band:
        """The band of Hamiltonian Monte Carlo, with how well its chains agree as a note."""
        self.tell(name)
        hmc = HMCRegressor(
            hidden,
            activation,
            weight_prior=prior,
            noise_scale=self.noise_scale,
            n_chains=self.settings.n_chains,
            n_warmup=self.settings.n_warmup,
            n_draws=self.settings.n_kept,
            random_state=self.seed,
        ).fit(self.X, self.y)
        posterior, prediction = hmc.posterior_, hmc.pred_dist(self.grid[:, None])
        functions = prediction.loc.reshape(*posterior.chains.draws.shape[:2], len(self.grid))
        along = float(split_rhat(functions).max()), float(bulk_ess(functions).min())
        note = (
            f"split R̂ {posterior.rhat:.3f} at the data and {along[0]:.3f} along the whole line, "
            f"effective draws {posterior.ess:.0f} and {along[1]:.0f}"
        )
        return Band.of(name, self.grid, prediction, note=note, rhat=posterior.rhat)

"""Fits of the figures' toy problems, their predictive bands, and distances to the true band."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vmg.estimators import TableRegressor
from vmg.fit.design import Standardiser
from vmg.likelihoods import KnownNoiseLikelihood
from vmg.nn.bayesian import use_generator
from vmg.nn.mlp import MLP
from vmg.objective import elbo
from vmg.prediction import Prediction
from vmg.training import cosine, train
from vmg_paper.baselines import HMCRegressor, PBPRegressor
from vmg_paper.baselines.hamiltonian import bulk_ess, split_rhat
from vmg_paper.experiments.results_file import markdown
from vmg_paper.layers import GlobalInducingMLP

__all__ = [
    "Band",
    "MakeNetwork",
    "Settings",
    "Toy",
    "ToyResult",
    "distance",
    "fit_network",
    "inducing_network",
    "paper_network",
    "render_lines",
    "run_of",
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


def distance(band: Band, truth: Band, inside: NDArray[np.bool_]) -> dict[str, float]:
    """How far ``band`` is from ``truth`` where there are data and where there are none.

    Means in units of the true band's width, widths as the geometric mean of the factor by which they differ either way.
    So 1 is a mean that is one true standard deviation off, and 2 a width that is twice or half the true one.
    """
    mean = np.abs(band.mean - truth.mean) / truth.std
    log_std = np.abs(np.log(band.std / truth.std))
    return {
        "mean_inside": float(mean[inside].mean()),
        "mean_outside": float(mean[~inside].mean()),
        "width_inside": float(np.exp(log_std[inside].mean())),
        "width_outside": float(np.exp(log_std[~inside].mean())),
    }


@dataclass(frozen=True)
class ToyResult:
    """All that a figure shows."""

    x: Array  # data, [N]
    y: Array
    target: Callable[[Array], Array]  # the function behind the data
    bands: list[Band]  # in the order of drawing
    ranges: Sequence[tuple[float, float]]  # where there are data

    @property
    def truths(self) -> dict[str, Band]:
        """Bands that others approximate, by name."""
        return {band.name: band for band in self.bands if not band.truth}

    def inside(self, x: Array) -> NDArray[np.bool_]:
        """Whether x is where the data are."""
        return np.logical_or.reduce([(low <= x) & (x <= high) for low, high in self.ranges])

    def lines(self, **fields: Any) -> list[dict[str, Any]]:
        """One line for each band, to be kept after ``fields``: distances to the truth, and the band at nine points."""
        lines = []
        for band in self.bands:
            some = np.linspace(0, len(band.x) - 1, 9).round().astype(int)
            line = {**fields, "name": band.name, "truth": band.truth, "note": band.note}
            line |= {key: getattr(band, key)[some].round(6).tolist() for key in ("x", "mean", "std")}
            if band.truth:
                apart = distance(band, self.truths[band.truth], self.inside(band.x))
                line |= {key: round(value, 4) for key, value in apart.items()}
            lines.append(line)
        return lines


def run_of(line: dict[str, Any]) -> tuple[str, int, float]:
    """The run that a kept line is of: its figure, the seed of the data, and the prior, the widest first."""
    return line["figure"], line["seed"], -line["prior_scale"]


def render_lines(lines: Sequence[dict[str, Any]]) -> str:
    """Tables of kept lines: distances of each figure's bands, how well its chains agree, and widths of other runs."""
    parts = []
    for figure in sorted({line["figure"] for line in lines}):
        runs: dict[tuple[str, int, float], list[dict[str, Any]]] = {}
        for line in lines:
            if line["figure"] == figure:
                runs.setdefault(run_of(line), []).append(line)
        drawn = runs[min(runs)]
        rows = [(line["name"], *(f"{line[key]:.2f}" for key in DISTANCES)) for line in drawn if line["truth"]]
        parts += [f"**Figure {figure[-1]}**", "", markdown(("method", *DISTANCES.values()), rows), ""]
        chains = [(line["name"], line["note"]) for line in drawn if line["note"]]
        parts += [markdown(("truth", "its chains"), chains), ""]
        if len(runs) > 1:
            widths = [
                {line["name"]: f"{line['width_outside']:.2f}" for line in runs[k] if line["truth"]}
                for k in sorted(runs)
            ]
            rows = [(name, *(one.get(name, "") for one in widths)) for name in widths[0]]
            head = ("method", *(f"data {seed}, N(0, {-scale:g}²)" for _, seed, scale in sorted(runs)))
            parts += [f"**Figure {figure[-1]}, width where there are no data**", "", markdown(head, rows), ""]
    return "\n".join(parts).strip()


DISTANCES = {
    "mean_inside": "mean, data",
    "mean_outside": "mean, none",
    "width_inside": "width, data",
    "width_outside": "width, none",
}


Network = MLP | GlobalInducingMLP
MakeNetwork = Callable[[Sequence[int]], Network]
"""A network with the given ``batch_shape``."""

OBJECTIVE_DRAWS = 200  # of the posterior, to tell one start's objective from another's


def paper_network(hidden: Sequence[int], n_pseudo: Sequence[int], batch_shape: Sequence[int], **options: Any) -> MLP:
    """Matrix Gaussian layers with few pseudo-points; the paper's 0.2 is a limit on √α."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="n_pseudo should be <")  # the paper's own choice
        return MLP(1, hidden, 1, n_pseudo=n_pseudo, max_noise=0.2, batch_shape=batch_shape, **options)


INDUCING_POINTS = 20  # one for each row


def inducing_network(hidden: Sequence[int], batch_shape: Sequence[int], **options: Any) -> GlobalInducingMLP:
    """Pseudo-data of the whole network in place of those of each layer."""
    return GlobalInducingMLP(1, hidden, 1, n_inducing=INDUCING_POINTS, batch_shape=batch_shape, **options)


@dataclass(frozen=True)
class Settings:
    """How much work each method of a figure may do."""

    n_steps: int = 2_000
    n_draws: int = 200  # as in the paper
    n_starts: int = 4
    """Starts of every network: the one with the best objective on the training rows is kept."""
    n_epochs: int = 200
    """Epochs of PBP. Its paper's 40 are 800 updates on so few rows, and its noise is then still falling."""
    n_pbp_starts: int = 16
    """Starts of PBP, of which that with the best evidence is kept: a single one often ends far from the data."""
    n_chains: int = 16
    n_warmup: int = 400
    n_kept: int = 300
    n_points: int = 241


@dataclass(frozen=True)
class FittedToy:
    """Replicas of a network in standard units, and each one's objective, a sum over rows [n_starts]."""

    network: Network
    objectives: Array
    noise_scale: float
    inputs: Standardiser
    targets: Standardiser

    def predict(self, x: Array, n_draws: int, seed: int) -> Prediction:
        """The predictive distribution of the start with the best objective at x [M], in the target's units."""
        rows = torch.as_tensor(self.inputs.transform(x[:, None]))
        exact = copy.deepcopy(self.network).double()
        use_generator(exact, torch.Generator().manual_seed(seed))
        functions = exact.sample_functions(n_draws)(rows)[:, int(self.objectives.argmax())].detach()
        noise = np.full((1, 1, 1), self.noise_scale)
        return Prediction(self.targets.inverse(functions.numpy()), noise, np.full_like(noise, np.inf))


def fit_network(
    make: MakeNetwork, x: Array, y: Array, *, noise_scale: float, n_steps: int, n_starts: int, seed: int
) -> FittedToy:
    """Train ``n_starts`` networks as one on x, y [N] in standard units, the noise known in the target's own."""
    generator = torch.Generator().manual_seed(seed)
    network = make((n_starts,))
    network.reset_parameters(generator)
    scalings = Standardiser.fit(x[:, None]), Standardiser.fit(y[:, None])
    standard_noise = noise_scale / float(scalings[1].scale[0])
    likelihood = KnownNoiseLikelihood(standard_noise)
    columns = (scaling.transform(values[:, None]) for scaling, values in zip(scalings, (x, y), strict=True))
    rows = [torch.as_tensor(one, dtype=torch.float32).repeat(n_starts, 1, 1) for one in columns]  # [n_starts, N, 1]
    if isinstance(network, GlobalInducingMLP):  # at the rows, with their noise
        at = np.linspace(0, len(x) - 1, network.n_inducing).round().astype(int)
        network.start_at(rows[0][:, at], rows[1][:, at])
        torch.nn.init.constant_(network.log_precisions[-1], -2 * math.log(standard_noise))
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
        draws = [elbo(network, likelihood, *rows, n_data=len(x)).total for _ in range(OBJECTIVE_DRAWS)]
    objectives = len(x) * torch.stack(draws).mean(0).double().numpy()
    return FittedToy(network, objectives, noise_scale, *scalings)


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

    def regressor_band(self, name: str, regressor: Any, truth: str) -> Band:
        """The band of an estimator that learns its noise."""
        self.tell(name)
        prediction = regressor.fit(self.X, self.y).pred_dist(self.grid[:, None])
        return Band.of(name, self.grid, prediction, truth=truth)

    def pbp_band(self, hidden: Sequence[int], truth: str) -> Band:
        """Probabilistic backpropagation, which learns its noise as in its paper.

        With the small known noise from the first row on, its updates are so large that many hidden units keep their
        kinks where they started, near the middle of x: the mean then has a narrow peak there.
        """
        s = self.settings
        pbp = PBPRegressor(hidden, s.n_epochs, n_starts=s.n_pbp_starts, random_state=self.seed)
        return self.regressor_band("PBP", pbp, truth)

    def default_band(self, truth: str) -> Band:
        """This library's default for tables."""
        return self.regressor_band("TableRegressor()", TableRegressor(random_state=self.seed), truth)

    def true_band(self, name: str, hidden: Sequence[int], activation: str, prior: float) -> Band:
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

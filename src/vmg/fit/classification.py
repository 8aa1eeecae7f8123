"""A classification ensemble: members trained on all rows but their own held-out ones, which then calibrate them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import optimize, special
from torch import Tensor

from vmg.fit.classification_members import SETTLING_STEPS, ClassificationMembers, MemberLogits
from vmg.fit.design import Design
from vmg.fit.ensemble import rows_to_condition_on, train_ensemble
from vmg.fit.scaling import InputRange, soften
from vmg.fit.size import Size
from vmg.math.softmax_evidence import SoftmaxPosterior, improve
from vmg.training import Callback, History

__all__ = ["ClassificationEnsemble", "fit_classification"]

Array = NDArray[np.float64]

DRAWS_OF_CALIBRATION = 32
REGION_WEIGHT = 0.3  # of all rows in held-out regions, beside all rows of folds
PRIOR_ROWS = 3.0  # the priors of log sharpness ~ N(0, 1) and log stretch ~ N(0, 2²) count as so many rows


@dataclass(frozen=True)
class ClassificationEnsemble:
    """Members conditioned on all rows, with what their held-out rows said of their logits."""

    members: ClassificationMembers
    mean: Tensor  # of the output weights, [E, D, K]
    root: Tensor  # Cholesky factor of their row precision, [E, D, D]
    sharpness: float  # factor of the logits
    stretch: float  # factor of their variance
    input_range: InputRange

    @torch.no_grad()
    def sample_probabilities(self, x: Array, n_draws: int, seed: int) -> Array:
        """Class probabilities of ``n_draws`` whole functions of each member, [E n_draws, N, K]."""
        soft = soften(x)
        phi = self.members.features(torch.as_tensor(soft))
        generator = torch.Generator().manual_seed(seed)
        noise = torch.randn(n_draws, *self.mean.shape, generator=generator, dtype=torch.float64)
        half = n_draws // 2
        noise[half : 2 * half] = -noise[:half]  # pairs of opposite draws: their mean has less noise
        spread = SoftmaxPosterior(self.mean, self.root).weight_noise(noise)
        remote = torch.as_tensor(self.stretch * self.input_range.remoteness(soft)).sqrt().unsqueeze(-1)
        logits = self.sharpness * (phi @ self.mean) + remote * (phi @ spread)
        return torch.softmax(logits, -1).flatten(0, 1).numpy()

    def updated(self, x: Array, y: NDArray[np.int64], weight: Array | None) -> ClassificationEnsemble:
        """Condition the output layers on more rows, the posterior so far being their prior."""
        phi = self.members.features(torch.as_tensor(soften(x))).detach()
        w = torch.ones(len(x), dtype=torch.float64) if weight is None else torch.as_tensor(weight)
        labels = torch.nn.functional.one_hot(torch.as_tensor(y), self.members.n_classes).double()
        posterior = SoftmaxPosterior(self.mean, self.root)
        found = improve_on(posterior, phi, labels, w.expand(len(phi), -1), 2 * SETTLING_STEPS)
        return replace(self, mean=found.mean.contiguous(), root=found.root.contiguous())

    def relevance(self) -> Array:
        """How strongly each input can move the first layer, [D]."""
        return self.members.features.relevance().double().numpy()


def improve_on(
    prior: SoftmaxPosterior, features: Tensor, labels: Tensor, weight: Tensor, n_steps: int
) -> SoftmaxPosterior:
    """Update a posterior MN(M₀, A₀⁻¹, I) with rows, in coordinates where it is a standard prior.

    With W = M₀ + A₀^(-½)V the prior of V is MN(0, I, I) and features become ΦA₀^(-½), with offsets ΦM₀ of the logits.
    """
    whitened = torch.linalg.solve_triangular(prior.root, features.mT, upper=False).mT
    offset = features @ prior.mean
    ones = torch.ones(whitened.shape[:-2] + whitened.shape[-1:], dtype=features.dtype)
    found = improve(None, whitened, labels, ones, weight, n_steps, offset=offset)
    found = improve(found, whitened, labels, ones, weight, n_steps, offset=offset)
    mean = prior.mean + torch.linalg.solve_triangular(prior.root.mT, found.mean, upper=True)
    return SoftmaxPosterior(mean, prior.root @ found.root)


def fit_classification(
    x: Array,
    y: NDArray[np.int64],
    n_classes: int,
    weight: Array | None,
    *,
    size: Size,
    seed: int,
    callbacks: Sequence[Callback] = (),
) -> tuple[ClassificationEnsemble, History]:
    """Fit to rows in standard units, x [N, D], with labels y [N] from 0 to K − 1."""

    def make_members() -> ClassificationMembers:
        return ClassificationMembers(x.shape[1], size.hidden, n_classes, size.activations, size.n_members)

    labels = torch.as_tensor(y)
    trained = train_ensemble(make_members, x, labels, weight, size=size, seed=seed, callbacks=callbacks)
    members, soft, design, held = trained.members, trained.soft, trained.design, trained.held
    given = torch.ones(len(x)) if weight is None else torch.as_tensor(weight, dtype=torch.float32)
    sharpness, stretch = 1.0, 1.0
    if held is not None:
        checked = given.double().numpy()[held.index]
        remote = design.remoteness(soft)[:, held.index]
        sharpness, stretch = _calibrate(held.predictions, held.index, design, remote, y[held.index], checked, seed)
    some, counted = rows_to_condition_on(given, trained.generator)
    posterior = members.posterior(torch.as_tensor(soft)[some], labels[some], counted.expand(size.n_members, -1))
    ensemble = ClassificationEnsemble(
        members, posterior.mean.contiguous(), posterior.root.contiguous(), sharpness, stretch, InputRange.of(soft)
    )
    return ensemble, trained.history


def _calibrate(
    found: MemberLogits,
    index: NDArray[np.int64],
    design: Design,
    remote: Array,
    y: NDArray[np.int64],
    weight: Array,
    seed: int,
) -> tuple[float, float]:
    """Sharpness and stretch under which held-out labels of folds and of regions are most probable."""
    rng = np.random.default_rng(seed)
    n_classes = found.loc.shape[-1]
    sets: list[tuple[float, list[tuple[Array, Array, NDArray[np.int64], Array, Array]]]] = []
    for regions in (False, True):
        parts = []
        for g, group in enumerate(design.groups):
            outside = np.flatnonzero(group.held_out[index])
            if group.region != regions or not len(outside):
                continue
            noise = rng.standard_normal((DRAWS_OF_CALIBRATION, len(group.members), 1, n_classes))
            loc, variance = found.loc[group.members][:, outside], found.variance[group.members][:, outside]
            spread = np.sqrt(variance * remote[g, outside])
            parts.append((loc, spread[..., None], y[outside], weight[outside], noise))
        if parts:
            sets.append((sum(float(part[3].sum()) for part in parts), parts))
    n_rows = sets[0][0]

    def loss(values: Array) -> float:
        sharpness, root = math.exp(np.clip(values[0], -5, 5)), math.exp(np.clip(values[1], -20, 20) / 2)
        total = 0.0
        for share, (size, parts) in zip((1.0, REGION_WEIGHT), sets, strict=False):
            for loc, spread, labels, w, noise in parts:
                p = special.softmax(sharpness * loc + root * spread * noise, -1).mean((0, 1))
                chosen = p[np.arange(len(labels)), labels]
                total -= float(w @ np.log(np.maximum(chosen, 1e-12))) * share / size
        return total + 0.5 * (values[0] ** 2 + (values[1] / 2) ** 2) * PRIOR_ROWS / n_rows

    options = {"maxiter": 80, "xatol": 1e-2, "fatol": 1e-5}
    best = optimize.minimize(loss, np.zeros(2), method="Nelder-Mead", options=options)
    return math.exp(np.clip(best.x[0], -5, 5)), math.exp(np.clip(best.x[1], -20, 20))

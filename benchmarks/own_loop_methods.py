"""Ways to make a plain classifier Bayesian in a loop of one's own: ours, and those of other libraries.

Each is used as its documentation says. A method has a ``start``, which gives one training step and what to do with a
rate, and a ``finish``, which gives draws of class probabilities after training.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from scipy import optimize
from torch import Tensor, nn
from torch.nn import functional as F

import vmg
from vmg.likelihoods import CategoricalLikelihood

N_DRAWS, N_CLASSES = 20, 10

Settings = dict[str, Any]
Rows = tuple[Tensor, Tensor]
Probabilities = Callable[[Tensor], Tensor]  # [draws, rows, classes] of rows


@dataclass
class Run:
    """One network under training."""

    step: Callable[[Tensor, Tensor, float], None]  # rows, classes, share of all steps that is done
    optimiser: torch.optim.Optimizer
    finish: Callable[[Rows, Rows], Probabilities]  # from all training rows, and from validation rows
    plain: nn.Module | None = None  # the network, where it is trained as a plain one


@dataclass(frozen=True)
class Method:
    """How to start a run on a plain network, the settings to choose from on validation rows, members and epochs."""

    start: Callable[[nn.Module, int, Settings], Run]
    grid: tuple[Settings, ...]
    needs: str | None = None
    n_members: int = 1
    share: float = 1.0  # of the epochs, for each member


def softmax(network: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.softmax(torch.cat([network(rows) for rows in x.split(1_000)]), -1)


def repeated(network: nn.Module, around: Callable[[], AbstractContextManager[Any]] | None = None) -> Probabilities:
    """Draws of a network that differs from call to call, as a whole."""

    def draw(x: Tensor) -> Tensor:
        found = []
        for _ in range(N_DRAWS):
            if around is None:
                found.append(softmax(network, x))
            else:
                with around():
                    found.append(softmax(network, x))
        return torch.stack(found)

    return draw


# -- ours -------------------------------------------------------------------------------------------------------------


def start_vmg(plain: nn.Module, n_data: int, settings: Settings) -> Run:
    options = {key: value for key, value in settings.items() if key != "lr"}
    model, likelihood = vmg.nn.bayesianize(plain, n_data=n_data, **options), CategoricalLikelihood()
    optimiser = torch.optim.AdamW(vmg.nn.parameter_groups(model), lr=settings["lr"])

    def step(x: Tensor, y: Tensor, done: float) -> None:
        optimiser.zero_grad()
        terms = vmg.elbo(model, likelihood, x, y, n_data=n_data, kl_weight=min(1.0, done / 0.3 + 0.01))
        (-terms.total).backward()
        optimiser.step()

    def finish(training: Rows, validation: Rows) -> Probabilities:
        model.eval()
        return repeated(model, lambda: vmg.nn.fixed_draw(model))

    return Run(step, optimiser, finish)


def start_head(plain: nn.Module, n_data: int, settings: Settings) -> Run:
    """A plain run, and a Bayesian head around its trained output layer."""
    run = start_plain(plain, n_data, settings)

    def finish(training: Rows, validation: Rows) -> Probabilities:
        return head_on(plain.eval(), training, validation)

    return Run(run.step, run.optimiser, finish, plain)


def head_on(plain: nn.Module, training: Rows, validation: Rows) -> Probabilities:
    head = vmg.nn.BayesianHead(plain, CategoricalLikelihood(), layer=last_layer(plain), keep_weights=True)
    head.fit([training], held_out=[validation])
    return lambda rows: torch.softmax(head.sample_functions(rows, N_DRAWS), -1).float()


def start_replicas(n_members: int, seen_by: int, *, heads: bool = False) -> Callable[[nn.Module, int, Settings], Run]:
    """Several networks that are stepped together, each row by some; then one temperature, or a head for each."""

    def start(plain: nn.Module, n_data: int, settings: Settings) -> Run:
        model = vmg.nn.replicate(plain, n_members, start_scale=settings["start_scale"])
        optimiser = torch.optim.AdamW(model.parameters(), lr=settings["lr"], weight_decay=settings["weight_decay"])
        minus_targets = -smoothed(settings)

        def step(x: Tensor, y: Tensor, done: float) -> None:
            optimiser.zero_grad()
            f = model(x, seen_by=seen_by)
            (f.log_softmax(-1) * minus_targets[y]).sum().backward()
            optimiser.step()

        def finish(training: Rows, validation: Rows) -> Probabilities:
            model.eval()
            if not heads:
                return tempered(model, validation)
            draws = [head_on(member, training, validation) for member in model.members()]
            return lambda rows: torch.cat([draw(rows) for draw in draws])

        return Run(step, optimiser, finish)

    return start


def tempered(model: nn.Module, validation: Rows) -> Probabilities:
    """Probabilities of a plain model, or of members, at the temperature of validation rows."""

    def functions(rows: Tensor) -> Tensor:  # [members, rows, classes]
        found = [model(part) for part in rows.split(1_000)]
        return torch.cat(found, found[0].dim() - 2).reshape(-1, len(rows), found[0].shape[-1])

    x, y = validation
    with torch.no_grad():
        best = temperature(functions(x), y)
        return torch.no_grad()(lambda rows: torch.softmax(functions(rows) / best, -1))


def temperature(f: Tensor, y: Tensor) -> float:
    """T of softmax(f / T) with the best log-likelihood of the mean probabilities (Guo et al. 2017).

    Args:
        f: outputs [members, N, C] for rows that trained nothing; y: their classes [N].
    """
    f = f.double()

    def loss(log_temperature: float) -> float:
        log_p = torch.log_softmax(f / math.exp(log_temperature), -1)
        own = log_p.gather(-1, y.expand(len(f), -1).unsqueeze(-1)).squeeze(-1)  # [members, N]
        return (math.log(len(f)) - torch.logsumexp(own, 0)).mean().item()

    grid = [step * math.log(2) / 2 for step in range(-12, 13)]
    losses = [loss(point) for point in grid]
    best = min(range(1, len(grid) - 1), key=losses.__getitem__)
    return math.exp(optimize.minimize_scalar(loss, bounds=(grid[best - 1], grid[best + 1]), method="bounded").x)


def smoothed(settings: Settings) -> Tensor:
    """The target of each class: all of it, or all but a share that is spread over all classes; [classes, classes]."""
    share = settings.get("smoothing", 0.0)
    return (1 - share) * torch.eye(N_CLASSES) + share / N_CLASSES


def last_layer(plain: nn.Module) -> str:
    return [name for name, part in plain.named_modules() if isinstance(part, nn.Linear)][-1]


# -- others -----------------------------------------------------------------------------------------------------------


def loss(f: Tensor, y: Tensor, settings: Settings) -> Tensor:
    return F.cross_entropy(f, y, label_smoothing=settings.get("smoothing", 0.0))


def start_plain(plain: nn.Module, n_data: int, settings: Settings) -> Run:
    optimiser = torch.optim.AdamW(plain.parameters(), lr=settings["lr"], weight_decay=settings["weight_decay"])

    def step(x: Tensor, y: Tensor, done: float) -> None:
        optimiser.zero_grad()
        loss(plain(x), y, settings).backward()
        optimiser.step()

    def finish(training: Rows, validation: Rows) -> Probabilities:
        plain.eval()
        return lambda rows: softmax(plain, rows).unsqueeze(0)

    return Run(step, optimiser, finish, plain)


def start_tempered(plain: nn.Module, n_data: int, settings: Settings) -> Run:
    """A plain run, and a temperature of validation rows (Guo et al. 2017): what takes three lines without a library."""
    run = start_plain(plain, n_data, settings)

    def finish(training: Rows, validation: Rows) -> Probabilities:
        plain.eval()
        return tempered(plain, validation)

    return Run(run.step, run.optimiser, finish, plain)


def start_bayesian_torch(plain: nn.Module, n_data: int, settings: Settings) -> Run:
    """Layers of bayesian-torch; its divergence is a mean over weights, divided by the batch, or their sum over N."""
    from bayesian_torch.models.dnn_to_bnn import dnn_to_bnn

    network = copy.deepcopy(plain)
    dnn_to_bnn(
        network,
        {
            "prior_mu": 0.0,
            "prior_sigma": 1.0,
            "posterior_mu_init": 0.0,
            "posterior_rho_init": settings["rho"],
            "type": settings["type"],
            "moped_enable": False,
            "moped_delta": 0.5,
        },
    )
    layers = [part for part in network.modules() if hasattr(part, "kl_loss")]
    optimiser = torch.optim.Adam(network.parameters(), lr=settings["lr"])

    def divergence(n_batch: int) -> Tensor:
        if settings["kl"] == "mean/batch":  # as its examples do
            return sum((layer.kl_loss() for layer in layers), torch.zeros(())) / n_batch
        summed = torch.zeros(())
        for layer in layers:
            for name, loc in layer.named_parameters():
                if name.startswith("mu_"):
                    scale = F.softplus(layer.get_parameter(name.replace("mu_", "rho_")))
                    summed = summed + (0.5 * (scale.square() + loc.square() - 1) - scale.log()).sum()
        return summed / n_data

    def step(x: Tensor, y: Tensor, done: float) -> None:
        optimiser.zero_grad()
        (loss(network(x), y, settings) + divergence(len(x))).backward()
        optimiser.step()

    def finish(training: Rows, validation: Rows) -> Probabilities:
        network.eval()
        return repeated(network)

    return Run(step, optimiser, finish)


def start_ivon(plain: nn.Module, n_data: int, settings: Settings) -> Run:
    """Improved variational online Newton (Shen et al. 2024)."""
    import ivon

    optimiser = ivon.IVON(
        plain.parameters(),
        lr=settings["lr"],
        ess=n_data,
        hess_init=settings["hess_init"],
        weight_decay=settings["weight_decay"],
    )

    def step(x: Tensor, y: Tensor, done: float) -> None:
        with optimiser.sampled_params(train=True):
            optimiser.zero_grad()
            loss(plain(x), y, settings).backward()
        optimiser.step()

    def finish(training: Rows, validation: Rows) -> Probabilities:
        plain.eval()
        return repeated(plain, optimiser.sampled_params)

    return Run(step, optimiser, finish)


def start_laplace(plain: nn.Module, n_data: int, settings: Settings) -> Run:
    """A plain run, and laplace-torch around it; the prior's precision by marginal likelihood or on validation rows."""
    run = start_plain(plain, n_data, settings)

    def finish(training: Rows, validation: Rows) -> Probabilities:
        from laplace import Laplace
        from torch.utils.data import DataLoader, TensorDataset

        plain.eval()
        if settings.get("tempered"):
            with torch.no_grad():
                best = temperature(plain(validation[0]).unsqueeze(0), validation[1])
                for parameter in plain.get_submodule(last_layer(plain)).parameters():
                    parameter /= best
        found = Laplace(
            plain,
            "classification",
            subset_of_weights="last_layer",
            hessian_structure=settings["structure"],
        )
        found.fit(DataLoader(TensorDataset(*training), 500))
        options = (
            {} if settings["precision"] == "marglik" else {"val_loader": DataLoader(TensorDataset(*validation), 500)}
        )
        found.optimize_prior_precision(method=settings["precision"], grid_size=21, **options)

        def draw(rows: Tensor) -> Tensor:
            with torch.no_grad():
                parts = [found.predictive_samples(part, n_samples=N_DRAWS) for part in rows.split(500)]
            return torch.cat(parts, 1)

        return draw

    return Run(run.step, run.optimiser, finish, plain)


RATES = (4e-3, 8e-3, 1.6e-2)  # for all that are trained by Adam


def also_smoothed(grid: tuple[Settings, ...]) -> tuple[Settings, ...]:
    """The same settings with the labels as they are, and with a tenth of each spread over all classes."""
    return (*grid, *(settings | {"smoothing": 0.1} for settings in grid))


PLAIN_GRID = also_smoothed(tuple({"lr": lr, "weight_decay": decay} for lr in RATES for decay in (0.01, 0.3)))
REPLICAS_GRID = also_smoothed(
    tuple({"lr": lr, "weight_decay": 0.01, "start_scale": scale} for lr in RATES for scale in (1.0, 3.0))
)
VMG_GRID = tuple({"lr": lr, "max_noise": noise} for lr in RATES for noise in (0.05, 0.15))
IVON_GRID = also_smoothed(
    tuple({"lr": lr, "hess_init": start, "weight_decay": 1e-4} for lr in (0.2, 0.5, 1.0) for start in (0.5, 0.9))
)
BAYESIAN_TORCH_GRID = also_smoothed(
    tuple(
        {"lr": lr, "type": kind, "kl": "mean/batch", "rho": -3.0}
        for lr in RATES
        for kind in ("Reparameterization", "Flipout")  # "sum/N" lost to "mean/batch" with all of them on digits
    )
)
LAPLACE_GRID = tuple(
    settings | {"structure": structure, "precision": precision}
    for settings in PLAIN_GRID
    for structure in ("kron", "full")
    for precision in ("marglik", "gridsearch")
)
TEMPERED_LAPLACE_GRID = tuple(settings | {"tempered": True} for settings in LAPLACE_GRID[1::2])
TWO_HALVES: dict[str, Any] = {"n_members": 2, "share": 0.5}  # as many steps in all as one network

METHODS: dict[str, Method] = {
    "plain": Method(start_plain, PLAIN_GRID),
    "plain, tempered": Method(start_tempered, PLAIN_GRID),
    "plain, two of half the steps": Method(start_plain, PLAIN_GRID, **TWO_HALVES),
    "plain, three": Method(start_plain, PLAIN_GRID, n_members=3),
    "two replicas, each row by both": Method(start_replicas(2, 2), REPLICAS_GRID),
    "four replicas, each row by two": Method(start_replicas(4, 2), REPLICAS_GRID),
    "two replicas, each row by one": Method(start_replicas(2, 1), REPLICAS_GRID),
    "two replicas, each row by one, heads": Method(start_replicas(2, 1, heads=True), REPLICAS_GRID),
    "head": Method(start_head, PLAIN_GRID),
    "head, two of half the steps": Method(start_head, PLAIN_GRID, **TWO_HALVES),
    "head, three": Method(start_head, PLAIN_GRID, n_members=3),
    "vmg, converted": Method(start_vmg, VMG_GRID),
    "bayesian-torch": Method(start_bayesian_torch, BAYESIAN_TORCH_GRID, needs="bayesian_torch"),
    "IVON": Method(start_ivon, IVON_GRID, needs="ivon"),
    "laplace-torch": Method(start_laplace, LAPLACE_GRID, needs="laplace"),
    "laplace-torch, tempered": Method(start_laplace, TEMPERED_LAPLACE_GRID, needs="laplace"),
    "laplace-torch, two of half the steps": Method(start_laplace, LAPLACE_GRID[1::2], needs="laplace", **TWO_HALVES),
}

"""Time of one training step of other Bayesian networks in PyTorch, beside a plain network's and ours.

784-h-h-h-10, batch 100, cross-entropy, one posterior sample a step. Every peer is used as its own documentation says
and optimises the bound with the divergence *summed* over weights and divided by the number of data, under fused Adam
where it brings no optimiser of its own. All networks of a width take turns; ratios are over ``nn.Linear`` there.
A peer that is not installed is named and left out: ``pip install 'vmg[peers]'``.

    python lab/peers.py [--json] [--widths 150 400 750] [--rounds 60]
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import sys
from collections.abc import Callable
from importlib.metadata import version

import benchmarks_path  # noqa: F401
import torch
from measuring import (
    N_DATA,
    Row,
    bayesian_step,
    interleaved,
    minibatch,
    mnist_sizes,
    parser,
    plain_network,
    plain_step,
    print_table,
)
from torch import Tensor, nn
from torch.nn import functional as F

from vmg_paper.layers import MeanFieldLinear

Step = Callable[[], None]
MakeStep = Callable[[int, Tensor, Tensor], Step]


def adam_step(parameters: object, loss: Callable[[], Tensor]) -> Step:
    optimiser = torch.optim.Adam(parameters, lr=1e-3, fused=True)  # type: ignore[arg-type]

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        loss().backward()
        optimiser.step()

    return step


def stacked(make: Callable[[int, int], nn.Module], width: int) -> nn.Sequential:
    """Layers of a peer with ReLU between them."""
    modules: list[nn.Module] = []
    for n_in, n_out in itertools.pairwise(mnist_sizes(width)):
        modules += [make(n_in, n_out), nn.ReLU()]
    return nn.Sequential(*modules[:-1])


# -- the peers --------------------------------------------------------------------------------------------------------


def ivon_step(width: int, x: Tensor, y: Tensor) -> Step:
    """Improved variational online Newton (Shen et al. 2024): the posterior is the optimiser's."""
    import ivon

    network = plain_network(mnist_sizes(width))
    optimiser = ivon.IVON(network.parameters(), lr=0.1, ess=N_DATA)

    def step() -> None:
        with optimiser.sampled_params(train=True):
            optimiser.zero_grad()
            F.cross_entropy(network(x), y).backward()
        optimiser.step()

    return step


def torchbnn_step(width: int, x: Tensor, y: Tensor) -> Step:
    """Its divergence is a mean over weights unless asked for a sum."""
    import torchbnn

    network = stacked(lambda n_in, n_out: torchbnn.BayesLinear(0, 1, n_in, n_out), width)
    divergence = torchbnn.BKLLoss(reduction="sum", last_layer_only=False)
    return adam_step(network.parameters(), lambda: F.cross_entropy(network(x), y) + divergence(network).sum() / N_DATA)


def bayesian_torch_step(width: int, x: Tensor, y: Tensor, *, flipout: bool) -> Step:
    """Its layers return the divergence as a mean over weights; overriding ``kl_div`` makes it a sum."""
    from bayesian_torch.layers import LinearFlipout, LinearReparameterization

    base: type[nn.Module] = LinearFlipout if flipout else LinearReparameterization

    class Summed(base):  # type: ignore[misc, valid-type]
        def kl_div(self, mu_q: Tensor, sigma_q: Tensor, mu_p: Tensor, sigma_p: Tensor) -> Tensor:
            return super().kl_div(mu_q, sigma_q, mu_p, sigma_p) * mu_q.numel()

    sizes = mnist_sizes(width)
    layers = nn.ModuleList(Summed(n_in, n_out) for n_in, n_out in itertools.pairwise(sizes))

    def loss() -> Tensor:
        h, divergence = x, x.new_zeros(())
        for number, layer in enumerate(layers):
            h, kl = layer(h if number == 0 else torch.relu(h))
            divergence = divergence + kl
        return F.cross_entropy(h, y) + divergence / N_DATA

    return adam_step(layers.parameters(), loss)


def blitz_step(width: int, x: Tensor, y: Tensor) -> Step:
    """Its divergence is one sample's log q(W) − log p(W), summed."""
    from blitz.modules import BayesianLinear
    from blitz.utils import variational_estimator

    @variational_estimator
    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = stacked(BayesianLinear, width)

        def forward(self, x: Tensor) -> Tensor:
            return self.layers(x)

    network = Network()
    options = {"criterion": F.cross_entropy, "sample_nbr": 1, "complexity_cost_weight": 1 / N_DATA}
    return adam_step(network.parameters(), lambda: network.sample_elbo(inputs=x, labels=y, **options))


class LocalLinear(nn.Module):
    """Factorised Gaussian with local reparametrisation (Kingma et al. 2015), prior N(0, 1), in plain PyTorch."""

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.loc = nn.Parameter(torch.randn(n_out, n_in) / n_in**0.5)
        self.bias = nn.Parameter(torch.zeros(n_out))
        self.log_scale = nn.Parameter(torch.full((n_out, n_in), -4.0))

    def forward(self, x: Tensor) -> Tensor:
        mean = F.linear(x, self.loc, self.bias)
        variance = F.linear(x.square(), torch.exp(2 * self.log_scale))
        return mean + variance.clamp_min(1e-12).sqrt() * torch.randn_like(mean)

    def kl_divergence(self) -> Tensor:
        return 0.5 * (torch.exp(2 * self.log_scale) + self.loc.square() - 1 - 2 * self.log_scale).sum()


def local_step(width: int, x: Tensor, y: Tensor) -> Step:
    network = stacked(LocalLinear, width)
    layers = [layer for layer in network if isinstance(layer, LocalLinear)]

    def loss() -> Tensor:
        return F.cross_entropy(network(x), y) + torch.stack([m.kl_divergence() for m in layers]).sum() / N_DATA

    return adam_step(network.parameters(), loss)


def mean_field_layer(position: int, n_in: int, n_out: int) -> MeanFieldLinear:
    return MeanFieldLinear(n_in, n_out)


PEERS: dict[str, tuple[str | None, MakeStep]] = {  # name: the distribution it needs, and how its step is made
    "nn.Linear": (None, plain_step),
    "vmg, P=50": (None, lambda *a: bayesian_step(*a, n_pseudo=50)),
    "vmg, P=20": (None, lambda *a: bayesian_step(*a, n_pseudo=20)),
    "vmg, zero mean, P=50": (None, lambda *a: bayesian_step(*a, n_pseudo=50, zero_mean=True)),
    "vmg, mean field (local reparametrisation)": (None, lambda *a: bayesian_step(*a, make_layer=mean_field_layer)),
    "mean field in plain PyTorch": (None, local_step),
    "IVON": ("ivon-opt", ivon_step),
    "torchbnn": ("torchbnn", torchbnn_step),
    "bayesian-torch, reparametrisation": ("bayesian-torch", lambda *a: bayesian_torch_step(*a, flipout=False)),
    "bayesian-torch, flipout": ("bayesian-torch", lambda *a: bayesian_torch_step(*a, flipout=True)),
    "blitz": ("blitz-bayesian-pytorch", blitz_step),
}
MODULES = {
    "ivon-opt": "ivon",
    "torchbnn": "torchbnn",
    "bayesian-torch": "bayesian_torch",
    "blitz-bayesian-pytorch": "blitz",
}


def installed() -> dict[str, bool]:
    """Whether each distribution that a peer needs is there."""
    return {name: importlib.util.find_spec(module) is not None for name, module in MODULES.items()}


def remark() -> str:
    """Which versions were measured, and what was not."""
    found = installed()
    there = [f"{name} {version(name)}" for name, is_there in found.items() if is_there]
    missing = [name for name, is_there in found.items() if not is_there]
    parts = [f"Versions: {', '.join(there)}."] * bool(there)
    parts += [f"Left out, not installed: {', '.join(missing)} (pip install 'vmg[peers]')."] * bool(missing)
    return " ".join(parts)


def measure(widths: list[int], rounds: int, threads: int) -> list[Row]:
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    x, y = minibatch()
    there = installed()
    makers = {name: make for name, (needs, make) in PEERS.items() if needs is None or there[needs]}
    results = []
    for width in widths:
        medians = interleaved({name: make(width, x, y) for name, make in makers.items()}, rounds)
        for name, milliseconds in medians.items():
            row: Row = {"width": width, "network": name, "ms": milliseconds}
            results.append({**row, "ratio": milliseconds / medians["nn.Linear"], "threads": threads})
    return results


def show(rows: list[Row]) -> None:
    """A line for each network, with time and ratio at every width."""
    widths = list(dict.fromkeys(row["width"] for row in rows))
    header = ["network", *itertools.chain.from_iterable((f"3×{width}, ms", "ratio") for width in widths)]
    lines: dict[str, list[str]] = {}
    for row in rows:
        lines.setdefault(row["network"], [row["network"]]).extend([f"{row['ms']:.2f}", f"{row['ratio']:.2f}×"])
    print_table(header, lines.values())


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--widths", type=int, nargs="+", default=[150, 400, 750])
    options.add_argument("--rounds", type=int, default=60)
    a = options.parse_args()
    if a.quick:
        a.widths, a.rounds = [60], 1
    rows = measure(a.widths, a.rounds, a.threads)
    if a.json:
        print(json.dumps(rows, indent=2))
        print(remark(), file=sys.stderr)
    else:
        show(rows)
        print(f"\n{remark()}")


if __name__ == "__main__":
    main()

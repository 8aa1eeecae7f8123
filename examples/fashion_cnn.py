"""A CNN from conversion to serving
================================

A CNN on Fashion-MNIST becomes Bayesian, is exported, and is unsure of images of another kind.

    python examples/fashion_cnn.py      # with VMG_DATA=FOLDER: FOLDER/fashion-mnist and FOLDER/mnist; else 8x8 digits
"""

import os
from collections.abc import Callable
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import vmg
from vmg.likelihoods import CategoricalLikelihood


def load() -> tuple[str, tuple[Tensor, Tensor], tuple[Tensor, Tensor], Tensor]:
    """Training rows, test rows, and images of another kind."""
    folder = os.environ.get("VMG_DATA")
    if folder and Path(folder, "fashion-mnist").is_dir():
        from vmg_paper.data.images import load_images

        (x, y), (x_test, y_test) = (load_images("fashion-mnist", part) for part in ("train", "test"))
        other = load_images("mnist", "test")[0]
        parts = [torch.as_tensor(a).reshape(-1, 1, 28, 28) for a in (x[:3_000], x_test[:1_000], other[:1_000])]
        labels = [torch.as_tensor(a).long() for a in (y[:3_000], y_test[:1_000])]
        return "Fashion-MNIST, and digits", (parts[0], labels[0]), (parts[1], labels[1]), parts[2]
    images, digits = (torch.as_tensor(a) for a in load_digits(return_X_y=True))
    x, y = images.float().reshape(-1, 1, 8, 8) / 16, digits.long()
    negative = 1 - x[1_300:]
    return "digits, and their negatives", (x[:1_300], y[:1_300]), (x[1_300:], y[1_300:]), negative


def main() -> None:
    torch.manual_seed(0)
    what, (x, y), (x_test, y_test), other = load()
    cnn = nn.Sequential(
        nn.Conv2d(1, 8, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.LazyLinear(10),
    )
    cnn(x[:1])  # the last layer sees its size
    likelihood = CategoricalLikelihood()

    def train(network: nn.Module, n_epochs: int, rate: float, loss: Callable[[Tensor], Tensor]) -> None:
        optimiser = torch.optim.AdamW(vmg.nn.parameter_groups(network), lr=rate)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, n_epochs * -(-len(x) // 50))
        for _ in range(n_epochs):
            for rows in torch.randperm(len(x)).split(50):
                optimiser.zero_grad()
                loss(rows).backward()
                optimiser.step()
                schedule.step()

    train(cnn, 15, 3e-3, lambda rows: nn.functional.cross_entropy(cnn(x[rows]), y[rows]))
    plain = (cnn(x_test).argmax(-1) == y_test).float().mean()
    model = vmg.nn.bayesianize(cnn, n_data=len(x))  # starts at the trained weights
    train(model, 10, 1e-3, lambda rows: -vmg.elbo(model, likelihood, x[rows], y[rows], n_data=len(x)).total)

    found = vmg.predict(model, x_test, likelihood=likelihood, n_samples=20)
    served = vmg.freeze_draws(model, 10, likelihood)  # plain modules, ready for torch.export or ONNX
    with torch.no_grad():
        inside, outside = served(x_test), served(other)
    right = found.mean.argmax(-1) == y_test
    print(what)
    print(f"right: {right.float().mean():.1%}, {plain:.1%} before the conversion")
    print(f"mean of the largest probability: {found.mean.max(-1).values.mean():.1%}")
    for name, prediction in (("inside", inside), ("outside", outside)):
        print(f"epistemic doubt {name}: {prediction.epistemic_std.norm(dim=-1).mean():.3f}")


if __name__ == "__main__":
    main()

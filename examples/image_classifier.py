"""A Bayesian image classifier
===========================

A convolutional network made Bayesian is sure of digits it knows, and unsure of digits it was never shown.

    python examples/image_classifier.py
"""

from collections.abc import Callable

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import vmg
from vmg.likelihoods import CategoricalLikelihood


def main() -> None:
    torch.manual_seed(0)
    images, labels = (torch.as_tensor(a) for a in load_digits(return_X_y=True))
    x, y = images.float().reshape(-1, 1, 8, 8) / 16, labels.long()
    known, train = y[1_300:] < 8, y[:1_300] < 8  # eights and nines are kept from the network
    x_train, y_train, x_test, y_test = x[:1_300][train], y[:1_300][train], x[1_300:], y[1_300:]

    cnn = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 16, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(256, 8),
    )
    likelihood = CategoricalLikelihood()

    def train_epochs(network: nn.Module, n_epochs: int, rate: float, loss: Callable[[Tensor], Tensor]) -> None:
        optimiser = torch.optim.AdamW(vmg.nn.parameter_groups(network), lr=rate)
        for _ in range(n_epochs):
            for rows in torch.randperm(len(x_train)).split(64):
                optimiser.zero_grad()
                loss(rows).backward()
                optimiser.step()

    train_epochs(cnn, 15, 3e-3, lambda rows: nn.functional.cross_entropy(cnn(x_train[rows]), y_train[rows]))
    plain = (cnn(x_test[known]).argmax(-1) == y_test[known]).float().mean()
    model = vmg.nn.bayesianize(cnn, n_data=len(x_train), verbose=True)  # starts at the trained weights

    def objective(rows: Tensor) -> Tensor:
        return -vmg.elbo(model, likelihood, x_train[rows], y_train[rows], n_data=len(x_train)).total

    train_epochs(model, 5, 1e-3, objective)

    found = vmg.predict(model, x_test, likelihood=likelihood, n_samples=30)
    right = found.mean[known].argmax(-1) == y_test[known]
    doubt = found.epistemic_std.norm(dim=-1)
    print(f"of digits that it was shown {right.float().mean():.1%} are right, {plain:.1%} before the conversion")
    print(f"epistemic doubt: {doubt[known].mean():.3f} for those, {doubt[~known].mean():.3f} for eights and nines")

    for rows, name in ((known, "digits 0 to 7, which it was shown"), (~known, "eights and nines")):
        plt.hist(doubt[rows].numpy(), bins=30, density=True, alpha=0.6, label=name)
    plt.xlabel("epistemic doubt")
    plt.ylabel("density")
    plt.legend()
    plt.show()


if __name__ == "__main__":
    main()

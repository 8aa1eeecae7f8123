"""Your own PyTorch model and loop
===============================

Swap the layers, and add one KL term that is right by construction.

    python examples/own_loop.py
"""

import matplotlib.pyplot as plt
import torch
from torch import nn

import vmg
from vmg.likelihoods import CategoricalLikelihood


def main() -> None:
    torch.manual_seed(0)
    x = torch.randn(600, 2)
    y = (x[:, 0] * x[:, 1] > 0).long()  # exclusive or

    model = vmg.nn.bayesianize(nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 2)), n_data=len(x))
    likelihood = CategoricalLikelihood()
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(1, 1_001):
        rows = torch.randint(len(x), (100,))
        terms = vmg.elbo(model, likelihood, x[rows], y[rows], n_data=len(x))
        loss = -terms.total
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if step % 250 == 0:
            print(
                f"step {step:>4}  objective {terms.total.item():7.3f}  fit {terms.expected_log_likelihood.item():7.3f}"
            )

    corners = torch.tensor([[1.5, 1.5], [1.5, -1.5], [0.02, 0.02]])
    probabilities = vmg.predict(model, corners, likelihood=likelihood, n_samples=200).mean
    for corner, p in zip(corners, probabilities, strict=True):
        print(f"at {corner.tolist()}: P(same sign) = {p[1]:.2f}")

    line = torch.linspace(-6, 6, 61)  # rows of the fit are between -3 and 3, almost all
    plane = torch.cartesian_prod(line, line)
    doubt = vmg.predict(model, plane, likelihood=likelihood).epistemic_std[:, 1].reshape(61, 61)
    picture = plt.pcolormesh(line.numpy(), line.numpy(), doubt.T.numpy())
    plt.scatter(*x.T.numpy(), s=4, color="white")
    plt.colorbar(picture, label="epistemic standard deviation of P(same sign)")
    plt.show()


if __name__ == "__main__":
    main()

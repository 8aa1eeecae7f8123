"""How many epochs does a converted network need for the accuracy of the plain one that it starts from?

The convolutional network of ``examples/image_classifier.py`` is trained on scikit-learn's digits, plain and converted
before any training, in the same loop. Validation rows are the last 300 of the example's training rows; none of its test
rows is read. One JSON line per method and seed has the accuracy after each epoch.

    python lab/converted_epochs.py --seeds 0,1,2
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn

import vmg
from vmg.likelihoods import CategoricalLikelihood

N_VALIDATION, EPOCHS = 300, {"plain": 15, "converted": 19}  # 1.3 times as many


def train(method: str, seed: int) -> list[float]:
    """Accuracy on the validation rows after each epoch."""
    torch.manual_seed(seed)
    images, labels = (torch.as_tensor(a)[:1_300] for a in load_digits(return_X_y=True))
    known = labels < 8
    x, y = images[known].float().reshape(-1, 1, 8, 8) / 16, labels[known].long()
    x_train, y_train, x_valid, y_valid = x[:-N_VALIDATION], y[:-N_VALIDATION], x[-N_VALIDATION:], y[-N_VALIDATION:]
    first, second = nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
    parts = [first, nn.ReLU(), nn.MaxPool2d(2), second, nn.ReLU(), nn.Flatten(), nn.Linear(256, 8)]
    model, likelihood = nn.Sequential(*parts), CategoricalLikelihood()
    if method == "converted":
        model = vmg.nn.bayesianize(model, n_data=len(x_train))
    optimiser = torch.optim.AdamW(vmg.nn.parameter_groups(model), lr=3e-3)
    found = []
    for _ in range(EPOCHS[method]):
        for rows in torch.randperm(len(x_train)).split(64):
            optimiser.zero_grad()
            if method == "plain":
                loss = nn.functional.cross_entropy(model(x_train[rows]), y_train[rows])
            else:
                loss = -vmg.elbo(model, likelihood, x_train[rows], y_train[rows], n_data=len(x_train)).total
            loss.backward()
            optimiser.step()
        with torch.no_grad():
            if method == "plain":
                output = model(x_valid)
            else:
                output = vmg.predict(model, x_valid, likelihood=likelihood, n_samples=20).mean
        found.append(round((output.argmax(-1) == y_valid).float().mean().item(), 4))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "converted_epochs.jsonl")
    options = parser.parse_args()
    with options.out.open("w", encoding="utf-8") as file:
        for method in EPOCHS:
            for seed in map(int, options.seeds.split(",")):
                accuracy = train(method, seed)
                file.write(json.dumps({"method": method, "seed": seed, "accuracy": accuracy}) + "\n")
                print(method, seed, accuracy[-1])


if __name__ == "__main__":
    main()

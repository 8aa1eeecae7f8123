"""Bayesian LoRA beside plain LoRA, an ensemble and a head, on a small language model that learns another language.

A causal transformer is trained on sequences of one random language, whose every token has four successors. A second
language changes the successors of a third of the tokens. 100 sequences of it train adapters of rank 8 on the frozen
model: points, matrix Gaussian factors, three points from starts of their own, and the points with a Bayesian head over
the whole vocabulary. Scores are of 300 test sequences: log-likelihood and ECE of the next token, and the AUROC that
tells tokens which no sequence ever had from the others, by the entropy of the mean and by the mutual information.
Epochs were chosen by the log-likelihood of seed 100. Seconds are the processor's, of adapting; megabytes those of
trained parameters. One JSON line per method and seed.

    python lab/lora.py --seeds 0,1,2 [--show]
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import vmg
from vmg.files import append_lines, read_lines
from vmg.likelihoods import CategoricalLikelihood
from vmg.metrics import auroc, class_scores

VOCABULARY, USED, LENGTH, WIDTH = 256, 200, 12, 48
CHANGED, ADAPTED = 66, "blocks.*linear[12]|head"
EPOCHS = {"plain LoRA": 160, "Bayesian LoRA": 800}


class LanguageModel(nn.Module):
    """A causal transformer; it stands for a pretrained model."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.position = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 96, dropout=0.0, batch_first=True)
        self.blocks = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        h = self.embedding(tokens) + self.position(torch.arange(length))
        return self.head(self.blocks(h, mask=mask, is_causal=True))


def successors(generator: torch.Generator) -> Tensor:
    """Probabilities [V, V] of the next token: four successors of each."""
    table = torch.zeros(VOCABULARY, VOCABULARY)
    for token in range(USED):
        places = torch.randperm(USED, generator=generator)[:4]
        table[token, places] = torch.tensor([0.5, 0.25, 0.15, 0.1])
    return table


def sequences(n: int, table: Tensor, generator: torch.Generator) -> Tensor:
    """Rows of LENGTH + 1 tokens."""
    tokens = [torch.randint(USED, (n,), generator=generator)]
    for _ in range(LENGTH):
        tokens.append(torch.multinomial(table[tokens[-1]], 1, generator=generator).squeeze(1))
    return torch.stack(tokens, 1)


def train(model: nn.Module, rows: Tensor, epochs: int, rate: float, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    optimiser = torch.optim.AdamW(vmg.nn.parameter_groups(model), lr=rate)
    n_steps, step = epochs * -(-len(rows) // 32), 0
    for _ in range(epochs):
        for index in torch.randperm(len(rows)).split(32):
            optimiser.param_groups[0]["lr"] = rate * (1 - step / n_steps)
            optimiser.zero_grad()
            loss(rows[index, :-1], rows[index, 1:]).backward()
            optimiser.step()
            step += 1


def cross_entropy(model: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda x, y: F.cross_entropy(model(x).flatten(0, 1), y.flatten())


def adapt(base: nn.Module, rows: Tensor, *, bayesian: bool, epochs: int | None = None) -> nn.Module:
    """The frozen model with adapters trained on rows: matrix Gaussian factors, or (nearly) points without a KL."""
    name = "Bayesian LoRA" if bayesian else "plain LoRA"
    spread = {} if bayesian else {"initial_scale": 1e-8}
    model = vmg.nn.add_lora(base, only=ADAPTED, rank=8, n_data=len(rows), **spread)
    likelihood = CategoricalLikelihood()

    def bound(x: Tensor, y: Tensor) -> Tensor:
        return -vmg.elbo(model, likelihood, x, y, n_data=len(rows)).total / LENGTH

    train(model, rows, epochs or EPOCHS[name], 1e-2, bound if bayesian else cross_entropy(model))
    return model if bayesian else vmg.nn.to_plain(model).requires_grad_(False)


def score(name: str, seed: int, answer: Answer, test: Tensor, seconds: float, n_trained: int) -> dict[str, Any]:
    """Scores of the next tokens of test sequences, and of doubt about tokens that never occurred."""
    (p, information), y = answer(test[:, :-1]), test[:, 1:].flatten()
    strange, strange_information = answer(torch.randint(USED, VOCABULARY, (100, LENGTH)))
    scores = class_scores(p.double().numpy(), y.numpy())
    entropies = (torch.special.entr(q).sum(-1) for q in (p, strange))
    line = {"method": name, "seed": seed, "s": round(seconds, 2), "MB": 4e-6 * n_trained}
    line |= {key: scores[key] for key in ("accuracy", "log_likelihood", "ece")}
    line["auroc, entropy"] = auroc(*(value.numpy() for value in entropies))
    line["auroc, information"] = auroc(information.numpy(), strange_information.numpy())
    return line


Answer = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Probabilities [tokens, V] and mutual information [tokens] at the positions of sequences."""


def of_points(models: list[nn.Module]) -> Answer:
    @torch.no_grad()
    def answer(tokens: Tensor) -> tuple[Tensor, Tensor]:
        each = torch.stack([model(tokens).softmax(-1).flatten(0, 1) for model in models])
        inside = torch.special.entr(each).sum(-1).mean(0)
        return each.mean(0), torch.special.entr(each.mean(0)).sum(-1) - inside

    return answer


def of_posterior(model: nn.Module) -> Answer:
    def answer(tokens: Tensor) -> tuple[Tensor, Tensor]:
        found = vmg.predict(model, tokens, likelihood=CategoricalLikelihood(), n_samples=20)
        return found.mean.flatten(0, -2).float(), found.mutual_information.float()

    return answer


def run(seed: int) -> list[dict[str, Any]]:
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    first, second = successors(generator), successors(generator)
    second[CHANGED:] = first[CHANGED:]
    base = LanguageModel()
    train(base, sequences(6_000, first, generator), 6, 3e-3, cross_entropy(base))
    rows, test = sequences(100, second, generator), sequences(300, second, generator)
    n_points, n_factors = (n_trained(base, points=points) for points in (True, False))
    members, times = [], []
    for _ in range(3):
        start = time.process_time()
        members.append(adapt(base, rows, bayesian=False))
        times.append(time.process_time() - start)
    start = time.process_time()
    head = vmg.nn.BayesianHead(copy.deepcopy(members[0])).fit([(rows[:, :-1], rows[:, 1:])])
    of_head = time.process_time() - start
    start = time.process_time()
    factors = adapt(base, rows, bayesian=True)
    of_factors = time.process_time() - start
    return [
        score(name, seed, answer, test, seconds, n)
        for name, answer, seconds, n in (
            ("frozen", of_points([base]), 0.0, 0),
            ("plain LoRA", of_points(members[:1]), times[0], n_points),
            ("plain LoRA, three", of_points(members), sum(times), 3 * n_points),
            ("plain LoRA, head over the vocabulary", of_posterior(head), times[0] + of_head, n_points),
            ("Bayesian LoRA", of_posterior(factors), of_factors, n_factors),
        )
    ]


def n_trained(base: nn.Module, *, points: bool) -> int:
    """Parameters of the adapters: of points, the means alone."""
    model = vmg.nn.add_lora(base, only=ADAPTED, rank=8)
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    return sum(p.numel() for name, p in trained if not points or name.endswith(".loc"))


def show(path: Path) -> None:
    lines = read_lines(path)
    keys = [key for key in lines[0] if key not in ("method", "seed")]
    for method in dict.fromkeys(line["method"] for line in lines):
        own = [line for line in lines if line["method"] == method]
        print(f"{method:38s}", "  ".join(f"{key} {statistics.mean(line[key] for line in own):.3f}" for key in keys))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--results", type=Path, default=Path(__file__).with_name("results") / "lora.jsonl")
    arguments = parser.parse_args()
    done = {line["seed"] for line in read_lines(arguments.results)}
    for seed in [] if arguments.show else [int(seed) for seed in arguments.seeds.split(",")]:
        if seed not in done:
            append_lines(arguments.results, run(seed))
    show(arguments.results)

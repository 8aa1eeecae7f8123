"""A language model with Bayesian adapters
=======================================

A frozen language model learns from a few sequences through Bayesian LoRA, and says which tokens it does not know.

    python examples/bayesian_lora.py
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import vmg
from vmg.likelihoods import CategoricalLikelihood

VOCABULARY, KNOWN, LENGTH, WIDTH = 48, 24, 8, 32


class LanguageModel(nn.Module):
    """A causal transformer; it stands for a pretrained model, whose linear layers have the same names."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.position = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.block = nn.TransformerEncoderLayer(WIDTH, 4, 64, dropout=0.0, batch_first=True)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        h = self.embedding(tokens) + self.position(torch.arange(tokens.shape[1]))
        return self.head(self.block(h, src_mask=mask, is_causal=True))


def sequences(n: int, step: int) -> Tensor:
    """Rows of known tokens in which each is the one before it plus ``step``, or now and then any."""
    tokens = [torch.randint(KNOWN, (n,))]
    for _ in range(LENGTH):
        tokens.append(torch.where(torch.rand(n) < 0.1, torch.randint(KNOWN, (n,)), (tokens[-1] + step) % KNOWN))
    return torch.stack(tokens, 1)


def main() -> None:
    torch.manual_seed(0)
    model = LanguageModel()
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(300):
        rows = sequences(64, step=1)
        optimiser.zero_grad()
        F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten()).backward()
        optimiser.step()

    rows, test, likelihood = sequences(60, step=5), sequences(200, step=5), CategoricalLikelihood()
    adapted = vmg.nn.add_lora(model, only="block.linear[12]|head", rank=8, n_data=len(rows))  # all else stays frozen
    optimiser = torch.optim.Adam((p for p in adapted.parameters() if p.requires_grad), lr=1e-2)
    for _ in range(600):
        batch = rows[torch.randint(len(rows), (32,))]
        optimiser.zero_grad()
        (-vmg.elbo(adapted, likelihood, batch[:, :-1], batch[:, 1:], n_data=len(rows)).total).backward()
        optimiser.step()

    for name, one in (("before", model), ("adapted, mean weights", vmg.nn.to_plain(adapted))):
        with torch.no_grad():
            right = one(test[:, :-1]).argmax(-1) == test[:, 1:]
        print(f"next token right, {name}: {right.float().mean():.1%}")
    strange = torch.randint(KNOWN, VOCABULARY, (200, LENGTH))
    head = vmg.nn.BayesianHead(vmg.nn.to_plain(adapted)).fit(rows[:, :-1], rows[:, 1:])  # over the whole vocabulary
    for way, bayesian in (("adapters", adapted), ("head over the vocabulary", head)):
        for name, tokens in (("known tokens", test[:, :-1]), ("tokens never seen", strange)):
            found = vmg.predict(bayesian, tokens, likelihood=likelihood, n_samples=20)
            print(f"{way}, {name}: mutual information {found.mutual_information.mean():.2f} nats")


if __name__ == "__main__":
    main()

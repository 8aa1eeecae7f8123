"""A Bayesian head on a frozen transformer
=======================================

One pass to fit, milliseconds for new rows, doubt about other sequences.

    python examples/transformer_head.py
"""

import time

import torch
from torch import Tensor, nn

import vmg

N_TOKENS, LENGTH = 12, 10


class Pooled(nn.Module):
    """The mean over positions of a transformer's outputs; it stands for a pretrained model."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(N_TOKENS, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.encoder(self.embedding(tokens)).mean(1)


def sequences(n: int, highest: int) -> tuple[Tensor, Tensor]:
    """Rows of tokens below ``highest``, and whether a low token or a high one is the more frequent."""
    tokens = torch.randint(0, highest, (n, LENGTH))
    return tokens, (tokens < highest // 2).float().mean(1).gt(0.5).long()


def main() -> None:
    torch.manual_seed(0)
    backbone = Pooled().eval().requires_grad_(False)
    tokens, labels = sequences(800, 8)  # four tokens never occur in training
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(tokens, labels), 100)
    head = vmg.nn.BayesianHead(backbone).fit(loader)

    test, expected = sequences(300, 8)
    found = vmg.predict(head, test)
    print(f"right: {(found.mean.argmax(-1) == expected).float().mean():.1%}")
    start = time.perf_counter()
    head.update(*sequences(20, 8))
    print(f"20 more rows: {1e3 * (time.perf_counter() - start):.0f} ms")
    unseen = torch.randint(8, N_TOKENS, (300, LENGTH))
    for name, rows in (("known tokens", test), ("tokens never seen", unseen)):
        print(f"epistemic doubt, {name}: {vmg.predict(head, rows).epistemic_std.mean():.3f}")


if __name__ == "__main__":
    main()

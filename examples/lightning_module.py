"""A LightningModule
=================

Its loss is the negative objective. Needs ``pip install 'vmg[interop]'``.

    python examples/lightning_module.py
"""

import importlib.util
import logging
import tempfile
import warnings

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import vmg
from vmg.likelihoods import GaussianLikelihood


def main() -> None:
    if importlib.util.find_spec("lightning") is None:
        print("Lightning is not installed.\nIt comes with\n\n    pip install 'vmg[interop]'")
        return
    warnings.simplefilter("ignore")  # Lightning's advice on workers
    import lightning

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Regression(lightning.LightningModule):
        def __init__(self, n_data: int) -> None:
            super().__init__()
            plain = nn.Sequential(nn.Linear(1, 50), nn.Tanh(), nn.Linear(50, 1))
            self.n_data, self.likelihood = n_data, GaussianLikelihood()
            self.model = vmg.nn.bayesianize(plain, n_data=n_data)

        def training_step(self, batch: tuple[Tensor, Tensor], number: int) -> Tensor:
            x, y = batch
            return -vmg.elbo(self.model, self.likelihood, x, y, n_data=self.n_data).total

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(vmg.nn.parameter_groups(self.model), lr=1e-2)

    torch.manual_seed(0)
    x = torch.rand(300, 1) * 4 - 2
    y = torch.sin(2 * x) + 0.1 * torch.randn_like(x)
    module = Regression(len(x))
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            max_epochs=60,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=folder,
        )
        trainer.fit(module, DataLoader(TensorDataset(x, y), 50, shuffle=True))
    points = torch.tensor([[-1.5], [-0.5], [0.5], [1.5]])
    found = vmg.predict(module.model, points, likelihood=module.likelihood)
    for point, mean, std, epistemic in zip(points, found.mean, found.std, found.epistemic_std, strict=True):
        print(
            f"at {point.item():4.1f}: {mean.item():5.2f} ± {std.item():.2f}, of which epistemic {epistemic.item():.2f}"
        )


if __name__ == "__main__":
    main()

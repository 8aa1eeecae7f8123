"""Trainers of other libraries: tiny models learn in them, and what they save is whole."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import vmg
from vmg.likelihoods import CategoricalLikelihood

pytestmark = pytest.mark.filterwarnings("ignore")  # these libraries warn of matters of their own

N = 256


def rows():
    x = torch.randn(N, 4, generator=torch.Generator().manual_seed(0))
    return x, (x[:, 0] + x[:, 1] > 0).long()


def make_model():
    torch.manual_seed(0)
    return vmg.nn.bayesianize(nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2)), n_data=N)


def accuracy(model, x, y):
    found = vmg.predict(model, x, likelihood=CategoricalLikelihood(), n_samples=10)
    return (found.mean.argmax(-1) == y).float().mean().item()


@pytest.mark.works_with("Lightning", "`training_step` returns `-vmg.elbo(...).total`; checkpoints are whole")
def test_lightning(tmp_path):
    lightning = pytest.importorskip("lightning", reason="see the extra interop")

    class Classifier(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model, self.likelihood = make_model(), CategoricalLikelihood()

        def training_step(self, batch, number):
            x, y = batch
            terms = vmg.elbo(self.model, self.likelihood, x, y, n_data=N)
            self.log("kl", terms.kl)
            return -terms.total

        def configure_optimizers(self):
            return torch.optim.AdamW(vmg.nn.parameter_groups(self.model), lr=0.02)

    x, y = rows()
    classifier = Classifier()
    silent = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = lightning.Trainer(max_epochs=5, accelerator="cpu", devices=1, default_root_dir=tmp_path, **silent)
    trainer.fit(classifier, DataLoader(TensorDataset(x, y), 32, shuffle=True))
    assert accuracy(classifier.model, x, y) > 0.9
    again = Classifier.load_from_checkpoint(trainer.checkpoint_callback.best_model_path)
    torch.testing.assert_close(vmg.nn.kl_divergence(again.model), vmg.nn.kl_divergence(classifier.model))


@pytest.mark.works_with("skorch", "`get_loss` adds `vmg.nn.kl_divergence(self.module_) / N`")
def test_skorch():
    skorch = pytest.importorskip("skorch", reason="see the extra interop")

    class Net(skorch.NeuralNetClassifier):
        def get_loss(self, y_pred, y_true, X=None, training=False):
            loss = super().get_loss(y_pred, y_true, X=X, training=training)
            return loss + vmg.nn.kl_divergence(self.module_) / N

    x, y = rows()
    how = {"criterion": nn.CrossEntropyLoss, "optimizer": torch.optim.Adam, "lr": 0.02, "max_epochs": 8}
    net = Net(make_model(), batch_size=32, train_split=None, verbose=0, **how)
    net.fit(x.numpy(), y.numpy())
    assert net.history[-1]["train_loss"] < net.history[0]["train_loss"]
    assert (net.predict(x.numpy()) == y.numpy()).mean() > 0.9
    assert accuracy(net.module_, x, y) > 0.9
    assert np.isfinite(net.predict_proba(x.numpy())).all()


@pytest.mark.works_with("accelerate", "pass what `prepare` gives to `vmg.elbo`")
def test_accelerate(tmp_path):
    accelerate = pytest.importorskip("accelerate", reason="see the extra interop")
    x, y = rows()
    accelerator = accelerate.Accelerator(cpu=True)
    model, likelihood = make_model(), CategoricalLikelihood()
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
    loader = DataLoader(TensorDataset(x, y), 32, shuffle=True)
    prepared, optimiser, loader = accelerator.prepare(model, optimiser, loader)
    for _ in range(8):
        for x_batch, y_batch in loader:
            with accelerator.accumulate(prepared):
                optimiser.zero_grad()
                terms = vmg.elbo(prepared, likelihood, x_batch, y_batch, n_data=N)
                accelerator.backward(-terms.total)
                optimiser.step()
    found = accelerator.unwrap_model(prepared)
    assert accuracy(found, x, y) > 0.9
    before = vmg.nn.kl_divergence(found).detach()
    accelerator.save_state(tmp_path)
    with torch.no_grad():
        found[0].loc.zero_()
    accelerator.load_state(tmp_path)
    torch.testing.assert_close(vmg.nn.kl_divergence(found), before)


@pytest.mark.works_with("HF Trainer", "`compute_loss` adds `vmg.nn.kl_divergence(model) / N`; saved as safetensors")
def test_hugging_face_trainer(tmp_path):
    transformers = pytest.importorskip("transformers", reason="see the extra interop")
    pytest.importorskip("accelerate", reason="the trainer of Hugging Face needs it; see the extra interop")
    torch.manual_seed(0)
    sizes = {"vocab_size": 20, "hidden_size": 16, "intermediate_size": 16, "max_position_embeddings": 8}
    config = transformers.BertConfig(num_hidden_layers=1, num_attention_heads=2, hidden_dropout_prob=0.0, **sizes)
    plain = transformers.BertForSequenceClassification(config)
    model = vmg.nn.bayesianize(plain, n_data=N, skip=".*embeddings")
    assert not any(type(m) is nn.Linear for m in model.modules())
    tokens = torch.randint(2, 20, (N, 6), generator=torch.Generator().manual_seed(0))
    labels = (tokens[:, 0] > 10).long()
    data = [{"input_ids": row, "labels": label} for row, label in zip(tokens, labels, strict=True)]

    class Trainer(transformers.Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            outputs = model(**inputs)
            loss = F.cross_entropy(outputs.logits, inputs["labels"]) + vmg.nn.kl_divergence(model) / N
            return (loss, outputs) if return_outputs else loss

    silent = {"report_to": [], "disable_tqdm": True, "logging_strategy": "no", "save_strategy": "no"}
    how = {"num_train_epochs": 12, "per_device_train_batch_size": 32, "learning_rate": 1e-2, "use_cpu": True}
    arguments = transformers.TrainingArguments(output_dir=str(tmp_path), **how, **silent)
    trainer = Trainer(model=model, args=arguments, train_dataset=data)
    trainer.train()
    found = vmg.predict(model, {"input_ids": tokens}, likelihood=CategoricalLikelihood(), n_samples=5)
    assert (found.mean.argmax(-1) == labels).float().mean() > 0.8
    trainer.save_model(str(tmp_path / "saved"))
    state = load_file(tmp_path / "saved" / "model.safetensors")
    again = vmg.nn.bayesianize(transformers.BertForSequenceClassification(config), n_data=N, skip=".*embeddings")
    again.load_state_dict(state)
    torch.testing.assert_close(vmg.nn.kl_divergence(again), vmg.nn.kl_divergence(model))

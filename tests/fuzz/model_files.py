"""Damaged and forged model files: each is refused with a ModelFileError, or is a model that predicts."""

from __future__ import annotations

import copy
import functools
import random
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from findings import Finding

import vmg
from vmg import ModelFileError, TableClassifier, TableRegressor
from vmg.estimators import TableModel
from vmg.model_file import read, write
from vmg.variational import VMGClassifier, VMGRegressor

TINY = {"hidden_layer_sizes": (3,), "max_iter": 10, "n_members": 2, "random_state": 0}
PSEUDO = {"hidden_layer_sizes": (3,), "n_pseudo": 2, "max_iter": 2, "n_draws": 4, "random_state": 0, "max_noise": 0.25}
VALUES = (
    *(None, True, False, 0, 1, -1, 2, 3, 7, 2**31, 2**62, 10**30, 0.5, -0.0, 1e-320, 1e308, float("nan"), float("inf")),
    *("", "a", "3", "relu", "dense", "<U1000000000", "x" * 2000, [], [0], [1, 2], [10**9], ["a"], {}, {"a": 1}),
    *([[[[[]]]]], {"array": {}}, {"network": {}}, {"history": {"stopped": 5}}),
)


def _table():
    import pandas as pd

    rng = np.random.default_rng(0)
    days = pd.Series(pd.date_range("2020-01-01", periods=24)).dt.strftime("%Y-%m-%d")
    cells = {"a": rng.random(24), "b": np.where(rng.random(24) < 0.5, "u", "v"), "day": days, "y": rng.random(24)}
    return pd.DataFrame(cells)


def _targets(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Targets of likelihoods that have files of their own form."""
    counts = rng.integers(0, 4, size=24).astype(float)
    return {
        "poisson": counts,
        "ordinal": counts,
        "lognormal": np.exp(rng.normal(size=24)),
        "binomial": np.stack([counts, counts + 2], 1),
    }


class Sound(NamedTuple):
    """A file that nobody has damaged: its bytes, its tensors and document, and what its model predicts."""

    data: bytes
    state: tuple
    answers: np.ndarray


@functools.cache
def sound_files() -> tuple[Sound, ...]:
    """Files of both regressors, both classifiers, a table's model and some likelihoods."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(24, 3))
    labels = np.where(X[:, 0] > 0, "yes", "no")
    models = [
        TableRegressor(**TINY).fit(X, X[:, 0]),
        TableClassifier(**TINY).fit(X, labels),
        VMGRegressor(**PSEUDO).fit(X, X[:, 0]),
        VMGClassifier(**PSEUDO).fit(X, labels),
        TableModel.fit(_table(), "y", options=TINY),
        *(TableRegressor(**TINY, likelihood=name).fit(X, y) for name, y in _targets(rng).items()),
    ]
    files = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.vmg")
        for model in models:
            model.save(path)
            files.append(Sound(path.read_bytes(), read(path), answers(vmg.load(path))))
    return tuple(files)


def answers(model) -> np.ndarray:
    """Predictions of a few rows."""
    if isinstance(model, TableModel):
        return model.predict_frame(_table()).select_dtypes("number").to_numpy()
    X = np.random.default_rng(1).normal(size=(4, 3))
    return model.predict_proba(X) if hasattr(model, "predict_proba") else model.predict(X)


def load(path: Path):
    """The model, or None where it is refused as it should be."""
    try:
        return vmg.load(path)
    except ModelFileError as error:
        if "memory" in str(error).lower():
            raise Finding(f"it asked for too much memory: {error}") from error
        return None


def mutated(rng: random.Random, folder: Path) -> str:
    """Bytes changed, cut out, put in, repeated: what loads must predict as the sound file does."""
    sound = rng.choice(sound_files())
    data = bytearray(sound.data)
    header = 8 + int.from_bytes(data[:8], "little")
    for _ in range(rng.choice((1, 1, 1, 2, 5, 20))):
        end = rng.choice((8, header, header, len(data)))
        place = rng.randrange(max(1, min(end, len(data))))
        kind = rng.randrange(6)
        if kind <= 1 and data:
            data[place : place + 1] = bytes([rng.randrange(256)])
        elif kind == 2 and data:
            data[place] ^= 1 << rng.randrange(8)
        elif kind == 3:
            del data[place : place + rng.choice((1, 3, 50))]
        elif kind == 4:
            data[place:place] = rng.choice((b"\0", b"9", b"[", b'"', b"{}", b"null", bytes(30)))
        else:
            data = data[: max(1, place)]
    path = folder / "mutated.vmg"
    path.write_bytes(bytes(data))
    model = load(path)
    if model is None:
        return "refused"
    if not np.array_equal(answers(model), sound.answers):
        raise Finding("a changed file loads and predicts otherwise")
    return "unharmed"


def forged(rng: random.Random, folder: Path) -> str:
    """A document or tensors changed before the digest is taken: what loads must predict without a traceback."""
    tensors, document = copy.deepcopy(rng.choice(sound_files()).state)
    for _ in range(rng.choice((1, 1, 2, 4))):
        if rng.random() < 0.25:
            _change_tensors(rng, tensors)
        else:
            _change_document(rng, document)
    path = folder / "forged.vmg"
    try:
        write(path, tensors, document)
    except (ModelFileError, TypeError, ValueError):
        return "not writable"
    model = load(path)
    if model is None:
        return "refused"
    try:
        answers(model)
    except ValueError:  # such as rows with fewer features than the forged model has
        return "loaded, no answer"
    return "loaded"


def _change_document(rng: random.Random, document: dict) -> None:
    place: object = document
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))  # type: ignore[arg-type]
        if not keys:
            return
        key = rng.choice(keys)
        inner = place[key]  # type: ignore[index]
        if not isinstance(inner, dict | list) or not inner or rng.random() < 0.15:
            break
        place = inner
    kind = rng.random()
    if kind < 0.75:
        place[key] = copy.deepcopy(rng.choice(VALUES))  # type: ignore[index]
    elif kind < 0.85:
        del place[key]  # type: ignore[attr-defined]
    elif isinstance(place, dict):
        place[rng.choice(("predict", "__class__", "extra_", "n_draws", ""))] = copy.deepcopy(rng.choice(VALUES))
    else:
        place.append(copy.deepcopy(rng.choice(VALUES)))  # type: ignore[attr-defined]


def _change_tensors(rng: random.Random, tensors: dict[str, torch.Tensor]) -> None:
    name = rng.choice(sorted(tensors)) if tensors else ""
    kind = rng.randrange(6)
    if not name:
        return
    tensor = tensors[name]
    if kind == 0:
        del tensors[name]
    elif kind == 1:
        tensors[name] = tensor.flatten()[:1]
    elif kind == 2:
        tensors[name] = torch.full_like(tensor, rng.choice((0, 1, -1, 100)))
    elif kind == 3 and tensor.is_floating_point():
        tensors[name] = torch.full_like(tensor, rng.choice((float("nan"), float("inf"), -6e4)))
    elif kind == 4:
        tensors[name] = tensor.to(rng.choice((torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.bool)))
    else:
        tensors[name] = tensor.unsqueeze(0).repeat(2, *[1] * tensor.dim())

"""Image sets of a few small images in the files' own form, with checksums to match."""

import gzip
import hashlib
import struct

import numpy as np
import pytest

from vmg_paper.data import images
from vmg_paper.experiments import digits

N_TRAIN, N_VALIDATION, N_TEST = 240, 40, 100


def idx_bytes(values):
    values = np.asarray(values, dtype=np.uint8)
    header = struct.pack(f">{1 + values.ndim}I", 0x0800 + values.ndim, *values.shape)
    return gzip.compress(header + values.tobytes(), 1, mtime=0)


def bars(n, seed, *, upright):
    """Class k is a bright bar at the k-th place, with noise: rows for known images, columns for others."""
    random = np.random.default_rng(seed)
    labels = np.arange(n) % 10
    pixels = random.integers(0, 60, size=(n, 28, 28))
    for image, label in zip(pixels, labels, strict=True):
        place = np.s_[:, 2 * label + 4] if upright else np.s_[2 * label + 4, :]
        image[place] = 255
    return pixels, labels


@pytest.fixture
def tiny_digits(monkeypatch, tmp_path):
    """`VMG_DATA` with a tiny MNIST and two tiny sets of other images."""
    folder = tmp_path / "data"
    sets = {}
    for name in ("mnist", "notmnist", "fashion-mnist"):
        (folder / name).mkdir(parents=True)
        sums = {}
        for part, prefix, n in (("train", "train", N_TRAIN), ("test", "t10k", N_TEST)):
            pixels, labels = bars(n, seed=len(sets) * 2 + len(sums), upright=name != "mnist")
            found = []
            for kind, values in (("images-idx3", pixels), ("labels-idx1", labels)):
                content = idx_bytes(values)
                (folder / name / f"{prefix}-{kind}-ubyte.gz").write_bytes(content)
                found.append(hashlib.sha256(content).hexdigest())
            sums[part] = tuple(found)
        sets[name] = images.ImageFiles("http://nowhere.invalid", sums)
    monkeypatch.setattr(images, "IMAGE_SETS", sets)
    monkeypatch.setattr(digits, "N_VALIDATION", N_VALIDATION)
    monkeypatch.setenv("VMG_DATA", str(folder))
    return folder

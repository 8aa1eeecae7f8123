"""MNIST and the sets in its form: 28 by 28 grey images of ten classes, in idx files."""

import gzip
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from vmg_paper.data.download import fetch_file


@dataclass(frozen=True)
class ImageFiles:
    """The source of a set's files, and the SHA-256 of its images and its labels by part."""

    address: str
    sha256: dict[str, tuple[str, str]]


IMAGE_SETS = {
    "mnist": ImageFiles(
        address="https://ossci-datasets.s3.amazonaws.com/mnist",
        sha256={
            "train": (
                "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
                "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            ),
            "test": (
                "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
                "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            ),
        },
    ),
    "fashion-mnist": ImageFiles(
        address="https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/"
        "b2617bb6d3ffa2e429640350f613e3291e10b141/data/fashion",
        sha256={
            "train": (
                "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
                "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            ),
            "test": (
                "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
                "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
            ),
        },
    ),
    "notmnist": ImageFiles(
        address="https://raw.githubusercontent.com/davidflanagan/notMNIST-to-MNIST/"
        "17823f4d4a3acd8317c07866702d2eb2ac79c7a0",
        sha256={
            "test": (
                "70ae9e06201f2827e5b0a3781a3169d735dd2efc69996b9eeaee7f10ed4044d7",
                "1fa03836e01c862542f8eb83463bb951bebec6fcb3efa28dad748c6b38a9021b",
            ),
        },
    ),
}


def load_images(name: str, part: Literal["train", "test"]) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Images [N, 784] in [0, 1] and labels [N] of a part of one of `IMAGE_SETS`; notmnist has only "test"."""
    if name not in IMAGE_SETS:
        raise ValueError(f"name must be one of {', '.join(IMAGE_SETS)}; got {name!r}")
    files = IMAGE_SETS[name]
    if part not in files.sha256:
        raise ValueError(f"part of {name} must be one of {', '.join(files.sha256)}; got {part!r}")
    prefix = {"train": "train", "test": "t10k"}[part]
    images_name, labels_name = f"{prefix}-images-idx3-ubyte.gz", f"{prefix}-labels-idx1-ubyte.gz"
    images_sha256, labels_sha256 = files.sha256[part]
    images = read_idx(fetch_file(f"{name}/{images_name}", f"{files.address}/{images_name}", images_sha256), 3)
    labels = read_idx(fetch_file(f"{name}/{labels_name}", f"{files.address}/{labels_name}", labels_sha256), 1)
    return images.reshape(len(images), -1).astype(np.float32) / np.float32(255), labels.astype(np.int64)


def read_idx(file: Path, n_dimensions: int) -> npt.NDArray[np.uint8]:
    """The array in a gzipped idx file, whose checksum is known: a magic number, the shape, then the bytes."""
    content = gzip.decompress(file.read_bytes())
    shape = np.frombuffer(content, dtype=">u4", offset=4, count=n_dimensions)
    return np.frombuffer(content, dtype=np.uint8, offset=4 * (1 + n_dimensions)).reshape(shape)

import gzip
import struct

import numpy as np
import pytest

from vmg_paper.data import load_images
from vmg_paper.data.images import read_idx


def write_idx(file, values):
    values = np.asarray(values, dtype=np.uint8)
    header = struct.pack(f">{1 + values.ndim}I", 0x0800 + values.ndim, *values.shape)
    file.write_bytes(gzip.compress(header + values.tobytes()))
    return file


@pytest.mark.parametrize(
    ("name", "part", "n_images"),
    [
        ("mnist", "train", 60_000),
        ("mnist", "test", 10_000),
        ("fashion-mnist", "train", 60_000),
        ("fashion-mnist", "test", 10_000),
        ("notmnist", "test", 10_000),
    ],
)
def test_images_are_read(name, part, n_images, data_folder):
    images, labels = load_images(name, part)
    assert images.shape == (n_images, 784)
    assert labels.shape == (n_images,)
    assert (images.dtype, labels.dtype) == (np.float32, np.int64)
    assert (images.min(), images.max()) == (0, 1)
    assert set(np.unique(labels)) == set(range(10))


def test_the_first_digits_are_the_famous_ones(data_folder):
    images, labels = load_images("mnist", "test")
    assert labels[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
    ones, zeros = images[labels == 1].reshape(-1, 28, 28), images[labels == 0].reshape(-1, 28, 28)
    assert ones.mean(0)[14, 14] > 0.8 > 0.1 > zeros.mean(0)[14, 14]  # a stroke through the centre, and a hole


def test_unknown_names_and_parts_are_refused():
    with pytest.raises(ValueError, match="one of mnist, fashion-mnist, notmnist; got 'cifar'"):
        load_images("cifar", "test")
    with pytest.raises(ValueError, match="part of notmnist must be one of test; got 'train'"):
        load_images("notmnist", "train")


def test_another_file_under_a_known_name_is_refused(cache):
    (cache / "mnist").mkdir(parents=True)
    write_idx(cache / "mnist/t10k-images-idx3-ubyte.gz", np.zeros((2, 28, 28)))
    with pytest.raises(ValueError, match="is damaged or another file"):
        load_images("mnist", "test")


def test_idx_round_trip(tmp_path):
    values = np.arange(24).reshape(2, 3, 4)
    read = read_idx(write_idx(tmp_path / "images.gz", values), 3)
    np.testing.assert_array_equal(read, values)
    assert read.dtype == np.uint8
    np.testing.assert_array_equal(read_idx(write_idx(tmp_path / "labels.gz", [3, 1]), 1), [3, 1])

import gzip
import struct

import numpy as np
import pytest

from vmg_paper.data import load_images
from vmg_paper.data.images import read_idx


def write_idx(file, values, magic=None):
    values = np.asarray(values, dtype=np.uint8)
    header = struct.pack(f">{1 + values.ndim}I", magic or 0x0800 + values.ndim, *values.shape)
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


def test_another_magic_number_is_refused(tmp_path):
    labels = write_idx(tmp_path / "labels.gz", np.arange(20))
    with pytest.raises(ValueError, match=r"start with 0x00000803 .*3 dimensions\); got 0x00000801"):
        read_idx(labels, 3)
    floats = write_idx(tmp_path / "floats.gz", [0, 0, 0, 0], magic=0x0D01)
    with pytest.raises(ValueError, match="got 0x00000d01"):
        read_idx(floats, 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content[:-1], "is truncated: expected 6 values .* got 5"),
        (lambda content: content + b"x", "is too long: expected 6 values .* got 7"),
        (lambda content: content[:7], "is truncated: expected a header of 8 bytes; got 7"),
        (lambda content: b"", "is truncated: expected a header of 8 bytes; got 0"),
    ],
)
def test_files_of_another_length_than_their_header_says_are_refused(tmp_path, change, message):
    file = write_idx(tmp_path / "labels.gz", np.arange(6))
    file.write_bytes(gzip.compress(change(gzip.decompress(file.read_bytes()))))
    with pytest.raises(ValueError, match=message):
        read_idx(file, 1)


@pytest.mark.parametrize(
    "change", [lambda content: content[:-9], lambda content: content[:11], lambda content: b"text"]
)
def test_truncated_and_other_files_are_refused(tmp_path, change):
    file = write_idx(tmp_path / "labels.gz", np.arange(6))
    file.write_bytes(change(file.read_bytes()))
    with pytest.raises(ValueError, match="is truncated or not a gzip file"):
        read_idx(file, 1)

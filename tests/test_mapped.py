"""Rows in mapped files: training from them is training, and costs no memory that grows with the file."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from vmg.likelihoods import GaussianLikelihood
from vmg.mapped import convert_parquet, open_rows, parquet_moments
from vmg.nn import MLP
from vmg.training import train

STATUS = Path("/proc/self/status")


def own_megabytes():
    """Anonymous memory of this process: not the pages of mapped files."""
    [line] = [line for line in STATUS.read_text().splitlines() if line.startswith("RssAnon")]
    return int(line.split()[1]) / 1024


def fitted(x, y, **options):
    generator = torch.Generator().manual_seed(0)
    network = MLP(x.shape[1], (5,), 1, n_pseudo=2)
    network.reset_parameters(generator)
    train(network, GaussianLikelihood(1), x, y, batch_size=16, generator=generator, **options)
    return torch.cat([p.detach().flatten() for p in network.parameters()])


@pytest.fixture
def table(tmp_path):
    """A Parquet file of several row groups."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(5.0, [1.0, 2.0, 3.0], (1_000, 3)), columns=["a", "b", "y"])
    frame["steady"] = 7
    path = tmp_path / "table.parquet"
    frame.to_parquet(path, row_group_size=300)
    return path, frame


def test_mapped_rows_train_as_rows_in_memory_do(tmp_path):
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((200, width), dtype=np.float32) for width in (3, 1))
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    mapped = fitted(open_rows(tmp_path / "x.npy"), open_rows(tmp_path / "y.npy"), n_steps=30)
    assert torch.equal(mapped, fitted(torch.from_numpy(x), torch.from_numpy(y), n_steps=30))


@pytest.mark.skipif(not STATUS.exists(), reason="memory is read from /proc")
def test_memory_does_not_grow_with_the_file(tmp_path):
    n, width = 1_000_000, 40  # 160 MB, holes on disk
    for name, columns in (("x", width), ("y", 1)):
        np.lib.format.open_memmap(tmp_path / f"{name}.npy", mode="w+", dtype=np.float32, shape=(n, columns))
    x, y = open_rows(tmp_path / "x.npy"), open_rows(tmp_path / "y.npy")
    assert x.shape == (n, width)
    fitted(x[:100], y[:100], n_steps=5)  # what is allocated at first use
    seen = [own_megabytes()]
    fitted(x, y, n_steps=100, report_every=10, callbacks=[lambda progress: seen.append(own_megabytes())])
    assert max(seen) - seen[0] < 20  # the order of an epoch takes 8


def test_files_stay_as_they_are(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((3, 2)))
    rows = open_rows(tmp_path / "x.npy")
    rows += 1
    assert torch.equal(open_rows(tmp_path / "x.npy"), torch.zeros(3, 2, dtype=torch.float64))


def test_rows_are_not_taken_from_columns(tmp_path):
    np.save(tmp_path / "x.npy", np.asfortranarray(np.zeros((3, 2))))
    with pytest.raises(ValueError, match="C order"):
        open_rows(tmp_path / "x.npy")


def test_moments_are_those_of_the_columns(table):
    path, frame = table
    mean, scale = parquet_moments(path, ["y", "a", "steady"], chunk_rows=70)
    np.testing.assert_allclose(mean, frame[["y", "a", "steady"]].mean(), rtol=1e-13)
    np.testing.assert_allclose(scale, [*frame[["y", "a"]].std(ddof=0), 1.0], rtol=1e-13)


def test_parquet_becomes_rows(table, tmp_path):
    path, frame = table
    convert_parquet(path, tmp_path / "x.npy", ["b", "steady"], chunk_rows=70)
    assert np.array_equal(open_rows(tmp_path / "x.npy"), frame[["b", "steady"]].to_numpy(np.float32))


def test_parquet_becomes_standard_rows(table, tmp_path):
    path, _ = table
    mean, scale = parquet_moments(path, ["a", "b"])
    convert_parquet(path, tmp_path / "x.npy", ["a", "b"], mean=mean, scale=scale)
    x = open_rows(tmp_path / "x.npy").double()
    torch.testing.assert_close(x.mean(0), torch.zeros(2, dtype=torch.float64), atol=1e-7, rtol=0)
    torch.testing.assert_close(x.std(0, correction=0), torch.ones(2, dtype=torch.float64), atol=1e-7, rtol=0)


def test_unknown_columns_are_named(table, tmp_path):
    with pytest.raises(ValueError, match=r"among \['a', 'b', 'y', 'steady'\]; got \['c'\]"):
        convert_parquet(table[0], tmp_path / "x.npy", ["c"])


def test_missing_values_are_refused_and_leave_no_file(table, tmp_path):
    path, frame = table
    frame.loc[900, "b"] = None
    frame.to_parquet(path)
    with pytest.raises(ValueError, match="none missing; got others in b"):
        convert_parquet(path, tmp_path / "x.npy", ["a", "b"])
    assert not (tmp_path / "x.npy").exists()


def test_a_table_without_rows_has_no_moments(table):
    path, frame = table
    frame[:0].to_parquet(path)
    with pytest.raises(ValueError, match="must have rows"):
        parquet_moments(path, ["a"])

"""Tables, their splits, and the toy problems."""

import gzip

import numpy as np
import pytest

from vmg_paper.data import cubic, load_table, osband, standard_splits
from vmg_paper.data.tables import ENTRIES

SHAPES = {
    "boston": (506, 13),
    "concrete": (1030, 8),
    "energy": (768, 8),
    "kin8nm": (8192, 8),
    "naval": (11934, 16),
    "power": (9568, 4),
    "protein": (45730, 9),
    "wine": (1599, 11),
    "yacht": (308, 6),
}


@pytest.fixture
def published_yacht(data_folder, server, monkeypatch):
    """Yacht served in the public form, its target in front and a column that is not used."""
    address, served = server
    table = load_table("yacht")
    folder = served / "UCI_Datasets/yacht/data"
    folder.mkdir(parents=True)
    unused = np.full((len(table.y), 1), -1.0)
    np.savetxt(folder / "data.txt", np.hstack([table.y[:, None], unused, table.X]), fmt="%.17g")
    np.savetxt(folder / "index_features.txt", np.arange(2, 8), fmt="%d")
    np.savetxt(folder / "index_target.txt", [0])
    monkeypatch.setattr("vmg_paper.data.tables.REPOSITORY", address)
    return table, folder


@pytest.mark.parametrize("name", SHAPES)
def test_tables_are_read(name, data_folder):
    table = load_table(name)
    assert table.name == name
    assert table.X.shape == SHAPES[name]
    assert table.y.shape == SHAPES[name][:1]
    assert table.X.dtype == table.y.dtype == np.float64
    assert np.isfinite(table.X).all() and np.isfinite(table.y).all()
    assert table.n_splits == (5 if name == "protein" else 20)
    assert ENTRIES[name].n_rows == len(table.y)


def test_the_columns_are_in_their_places(data_folder):
    naval, boston = load_table("naval"), load_table("boston")
    assert np.flatnonzero(np.ptp(naval.X, axis=0) == 0).tolist() == [8, 11]  # the compressor's inlet
    assert set(np.unique(boston.X[:, 3])) == {0, 1}  # by the river
    assert boston.y.max() == 50  # prices were cut off there
    assert set(load_table("wine").y) == {3, 4, 5, 6, 7, 8}


@pytest.mark.parametrize("action", [load_table, standard_splits])
def test_an_unknown_name_lists_the_known_ones(action):
    with pytest.raises(ValueError, match=r"one of boston, concrete, .*, year; got 'iris'"):
        action("iris")


def test_other_values_under_a_known_name_are_refused(cache):
    file = cache / "uci/yacht/data.csv.gz"
    file.parent.mkdir(parents=True)
    with gzip.open(file, "wt") as stream:
        stream.write("1,2,3\n4,5,6\n")
    with pytest.raises(ValueError, match=r"does not hold the known values.*got shape \(2, 3\)"):
        load_table("yacht")


def test_the_public_form_is_converted_and_cached(published_yacht, cache):
    local, folder = published_yacht
    downloaded = load_table("yacht")
    np.testing.assert_array_equal(downloaded.X, local.X)
    np.testing.assert_array_equal(downloaded.y, local.y)
    (folder / "data.txt").unlink()
    again = load_table("yacht")
    np.testing.assert_array_equal(again.X, local.X)
    np.testing.assert_array_equal(again.y, local.y)
    assert [file.name for file in (cache / "uci/yacht").iterdir()] == ["data.csv.gz"]


def test_public_values_that_changed_are_refused_and_not_cached(published_yacht, cache):
    _, folder = published_yacht
    text = (folder / "data.txt").read_text()
    (folder / "data.txt").write_text(text.replace("-2.2999999999999998", "-2.3000000000000003", 1))
    with pytest.raises(ValueError, match="does not hold the known values"):
        load_table("yacht")
    assert not (cache / "uci/yacht/data.csv.gz").exists()


def test_offline_the_error_names_the_file_of_our_layout(cache, monkeypatch):
    monkeypatch.setattr("vmg_paper.data.tables.REPOSITORY", "http://127.0.0.1:9")
    with pytest.raises(ConnectionError, match=r"a folder that holds uci/yacht/data\.csv\.gz"):
        load_table("yacht")


# -- splits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ENTRIES)
def test_regenerated_splits_are_the_published_ones(name, data_folder):
    regenerated = standard_splits(name)
    is_test = np.loadtxt(data_folder / f"uci/{name}/splits.csv.gz", delimiter=",", dtype=int)  # [N, splits]
    assert len(regenerated) == is_test.shape[1] == ENTRIES[name].n_splits
    for (train, test), column in zip(regenerated, is_test.T, strict=True):
        np.testing.assert_array_equal(np.sort(train), np.flatnonzero(column == 0))
        np.testing.assert_array_equal(np.sort(test), np.flatnonzero(column == 1))


def test_the_callers_random_state_is_left_alone():
    np.random.seed(3)  # noqa: NPY002 - the legacy state is what is under test
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    standard_splits("yacht")
    np.testing.assert_array_equal(np.random.get_state()[1], before)  # noqa: NPY002


def test_fewer_splits_are_the_first_ones():
    for split, first in zip(standard_splits("wine")[:3], standard_splits("wine", 3), strict=True):
        assert all(map(np.array_equal, split, first))


def test_year_has_its_own_fixed_split():
    [(train, test)] = standard_splits("year")
    assert (train[0], train[-1], test[0], test[-1]) == (0, 463_714, 463_715, 515_344)


def test_cubic_has_the_papers_inputs_and_noise():
    x, y = cubic(seed=0)
    assert x.shape == (20, 1) and y.shape == (20,)
    assert x.dtype == y.dtype == np.float64
    x, y = cubic(20_000, seed=0)
    assert -4 <= x.min() < -3.99 and 3.99 < x.max() <= 4
    noise = y - x[:, 0] ** 3
    assert abs(noise.mean()) < 4 * 3 / np.sqrt(20_000)
    assert abs(noise.var() - 9) < 4 * 9 * np.sqrt(2 / 20_000)  # four standard errors of a Gaussian's variance


def test_osband_has_the_papers_inputs():
    x, y = osband(0)
    assert x.shape == (20, 1) and y.shape == (20,)
    assert x.dtype == y.dtype == np.float64
    assert x[:12].min() >= 0 and x[:12].max() <= 0.6
    assert x[12:].min() >= 0.8 and x[12:].max() <= 1


def test_osbands_noise_moves_the_input():
    generator = np.random.default_rng(0)
    draws = [osband(generator) for _ in range(2000)]
    x = np.concatenate([x[:, 0] for x, _ in draws])
    y = np.concatenate([y for _, y in draws])

    # Gauss-Hermite quadrature over ε gives the mean and the variance of y at each x.
    nodes, weights = np.polynomial.hermite_e.hermegauss(20)
    weights = weights / weights.sum()
    moved = x[:, None] + np.sqrt(0.0009) * nodes  # [N, 20]
    curve = moved + np.sin(4 * moved) + np.sin(13 * moved)
    mean = curve @ weights
    variance = curve**2 @ weights - mean**2
    errors = (y - mean) / np.sqrt(variance)
    standard_error = 1 / np.sqrt(y.size)
    assert abs(errors.mean()) < 4 * standard_error
    assert abs(np.mean(errors**2) - 1) < 4 * np.std(errors**2) * standard_error


@pytest.mark.parametrize("problem", [lambda seed: cubic(seed=seed), osband])
def test_the_seed_decides(problem):
    np.testing.assert_array_equal(problem(1)[1], problem(1)[1])
    np.testing.assert_array_equal(problem(1)[1], problem(np.random.default_rng(1))[1])
    assert not np.array_equal(problem(1)[1], problem(2)[1])
    generator = np.random.default_rng(1)
    assert not np.array_equal(problem(generator)[1], problem(generator)[1])

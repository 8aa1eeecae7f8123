import numpy as np
import pytest

from vmg_paper.data import TABLES, read_splits, standard_splits
from vmg_paper.data.catalogue import ENTRIES


@pytest.mark.parametrize("name", ENTRIES)
def test_regenerated_splits_are_the_published_ones(name, data_folder):
    regenerated, published = standard_splits(name), read_splits(name)
    assert len(regenerated) == len(published) == ENTRIES[name].n_splits
    for (train, test), (published_train, published_test) in zip(regenerated, published, strict=True):
        np.testing.assert_array_equal(np.sort(train), published_train)
        np.testing.assert_array_equal(np.sort(test), published_test)


def test_the_recipe_is_the_one_of_the_papers():
    random = np.random.RandomState(1)
    for train, test in standard_splits("boston"):
        permutation = random.choice(range(506), 506, replace=False)
        np.testing.assert_array_equal(train, permutation[:455])
        np.testing.assert_array_equal(test, permutation[455:])


def test_the_callers_random_state_is_left_alone():
    np.random.seed(3)  # noqa: NPY002 - the legacy state is what is under test
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    standard_splits(100)
    np.testing.assert_array_equal(np.random.get_state()[1], before)  # noqa: NPY002


@pytest.mark.parametrize("name", TABLES)
def test_a_split_is_a_partition(name):
    (train, test) = standard_splits(name, 1)[0]
    rows = np.concatenate([train, test])
    np.testing.assert_array_equal(np.sort(rows), np.arange(len(rows)))


@pytest.mark.parametrize(("n_rows", "n_train"), [(10, 9), (15, 14), (25, 23), (35, 32), (506, 455), (2, 1), (5, 4)])
def test_a_number_of_rows_will_do_and_halves_round_up(n_rows, n_train):
    splits = standard_splits(n_rows)
    assert len(splits) == 20
    assert all(len(train) == n_train and len(test) == n_rows - n_train for train, test in splits)


def test_fewer_splits_are_the_first_ones():
    for (train, test), (first_train, first_test) in zip(
        standard_splits("wine")[:3], standard_splits("wine", 3), strict=True
    ):
        np.testing.assert_array_equal(train, first_train)
        np.testing.assert_array_equal(test, first_test)


def test_year_has_its_own_fixed_split():
    [(train, test)] = standard_splits("year")
    assert (train[0], train[-1], test[0], test[-1]) == (0, 463_714, 463_715, 515_344)
    with pytest.raises(ValueError, match="n_splits must be 1; got 2"):
        standard_splits("year", 2)
    with pytest.raises(ValueError, match=r"use standard_splits\('year'\)"):
        read_splits("year")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("iris",), "must be one of boston"),
        ((1,), "at least 2 rows; got 1"),
        ((50, 0), "n_splits must be at least 1; got 0"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        standard_splits(*arguments)


def test_read_splits_refuses_an_unknown_name():
    with pytest.raises(ValueError, match="must be one of boston"):
        read_splits("iris")


@pytest.fixture
def published_yacht(server, monkeypatch):
    address, served = server
    folder = served / "UCI_Datasets/yacht/data"
    folder.mkdir(parents=True)
    for split, (_, test) in enumerate(standard_splits("yacht")):
        np.savetxt(folder / f"index_test_{split}.txt", test, fmt="%d")
    monkeypatch.setattr("vmg_paper.data.catalogue.REPOSITORY", address)
    return folder


def test_the_public_form_is_converted_and_cached(published_yacht, cache):
    downloaded = read_splits("yacht")
    for file in published_yacht.iterdir():
        file.unlink()
    for (train, test), split, again in zip(standard_splits("yacht"), downloaded, read_splits("yacht"), strict=True):
        np.testing.assert_array_equal(np.sort(train), split[0])
        np.testing.assert_array_equal(np.sort(test), split[1])
        np.testing.assert_array_equal(split[1], again[1])
    assert (cache / "uci/yacht/splits.csv.gz").is_file()


@pytest.mark.parametrize(
    ("rows", "message"),
    [([0, 1, 2], "does not hold the known values"), ([5, 308], "rows from 0 to 307; got 5 to 308")],
)
def test_other_public_splits_are_refused(rows, message, published_yacht, cache):
    np.savetxt(published_yacht / "index_test_7.txt", rows, fmt="%d")
    with pytest.raises(ValueError, match=message):
        read_splits("yacht")
    assert not (cache / "uci/yacht/splits.csv.gz").exists()

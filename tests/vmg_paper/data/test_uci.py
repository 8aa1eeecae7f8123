import gzip

import numpy as np
import pytest

from vmg_paper.data import TABLES, load_table
from vmg_paper.data.catalogue import ENTRIES

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
    monkeypatch.setattr("vmg_paper.data.catalogue.REPOSITORY", address)
    return table, folder


def test_the_nine_tables_and_year_can_be_asked_for():
    assert (*SHAPES, "year") == TABLES


@pytest.mark.parametrize("name", SHAPES)
def test_tables_are_read(name, data_folder):
    table = load_table(name)
    assert table.name == name
    assert table.X.shape == SHAPES[name]
    assert table.y.shape == SHAPES[name][:1]
    assert table.X.dtype == table.y.dtype == np.float64
    assert np.isfinite(table.X).all() and np.isfinite(table.y).all()
    assert table.feature_names is not None
    assert len(set(table.feature_names)) == table.X.shape[1]
    assert table.n_splits == (5 if name == "protein" else 20)
    assert ENTRIES[name].n_rows == len(table.y)


def test_the_columns_are_where_they_should_be(data_folder):
    naval, boston = load_table("naval"), load_table("boston")
    constant = [name for name, column in zip(naval.feature_names, naval.X.T, strict=True) if np.ptp(column) == 0]
    assert constant == ["compressor inlet temperature", "compressor inlet pressure"]
    assert set(np.unique(boston.X[:, boston.feature_names.index("by the river")])) == {0, 1}
    assert boston.y.max() == 50  # prices were cut off there
    assert set(load_table("wine").y) == {3, 4, 5, 6, 7, 8}


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"one of boston, concrete, .*, year; got 'iris'"):
        load_table("iris")


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


def test_index_files_that_do_not_fit_the_data_are_refused(published_yacht, cache):
    _, folder = published_yacht
    np.savetxt(folder / "index_target.txt", [8])
    with pytest.raises(ValueError, match="more than 8 columns by its index files; got 8"):
        load_table("yacht")


def test_offline_the_error_names_the_file_of_our_layout(cache, monkeypatch):
    monkeypatch.setattr("vmg_paper.data.catalogue.REPOSITORY", "http://127.0.0.1:9")
    with pytest.raises(ConnectionError, match=r"a folder that holds uci/yacht/data\.csv\.gz"):
        load_table("yacht")

import pandas as pd
import pyarrow as pa
import pytest
from parquet_parts import damage_pages, make_frame, write_parts
from pyarrow import parquet

from vmg.scale import dataset as dataset_module
from vmg.scale import open_dataset
from vmg.scale.dataset import list_parts
from vmg.tables import TableError, read_table


def read(dataset, columns=None):
    return pd.concat(dataset.frames(columns), ignore_index=True)


def test_a_file_a_folder_and_a_pattern_are_the_same_rows(tmp_path):
    whole = write_parts(tmp_path / "sales", [250, 30])
    folder = f"{tmp_path}/sales"
    for source in (folder, f"{folder}/*.parquet", f"{tmp_path}/**/[ab].parquet", f"file://{folder}/*.parquet"):
        dataset = open_dataset(source)
        assert dataset.n_rows == 280 and not dataset.refused
        pd.testing.assert_frame_equal(read(dataset), whole)
    pd.testing.assert_frame_equal(read(open_dataset(tmp_path / "sales" / "a.parquet")), whole[:250])


def test_a_pattern_stays_within_its_folder_unless_it_says_otherwise(tmp_path):
    write_parts(tmp_path / "sales", [5])
    write_parts(tmp_path / "sales" / "old", [5])
    assert [part.name for part in list_parts(f"{tmp_path}/sales/*.parquet")] == ["a.parquet"]
    assert [part.name for part in list_parts(f"{tmp_path}/sales/**/*.parquet")] == ["a.parquet", "old/a.parquet"]
    assert [part.name for part in list_parts(f"{tmp_path}/*/a.parquet")] == ["sales/a.parquet"]


def test_names_of_folders_become_columns(tmp_path):
    write_parts(tmp_path / "year=2023" / "shop=north", [3])
    write_parts(tmp_path / "year=2024" / "shop=south", [2])
    frame = read(open_dataset(tmp_path))
    assert frame["year"].tolist() == [2023] * 3 + [2024] * 2
    assert frame["shop"].tolist() == ["north"] * 3 + ["south"] * 2
    assert read(open_dataset(tmp_path), columns=["x", "year"]).columns.tolist() == ["x", "year"]


def test_an_index_that_pandas_wrote_is_columns_if_it_has_a_name(tmp_path):
    frame = make_frame(30).drop(columns="key")
    (tmp_path / "named").mkdir()
    frame.set_index(["kind", "x"]).to_parquet(tmp_path / "named" / "a.parquet")
    (tmp_path / "shuffled").mkdir()
    frame.sample(frac=1, random_state=0).to_parquet(tmp_path / "shuffled" / "a.parquet")
    for name in ("named", "shuffled"):
        dataset = open_dataset(tmp_path / name)
        assert set(read(dataset)) == set(dataset.schema.names) == {"x", "z", "kind", "y"}
        assert set(read_table(tmp_path / name / "a.parquet").frame) == {"x", "z", "kind", "y"}
    frame.set_axis(pd.MultiIndex.from_product([["of"], frame.columns]), axis=1).to_parquet(tmp_path / "two.parquet")
    assert list(read_table(tmp_path / "two.parquet").frame) == ["of x", "of z", "of kind", "of y"]


def test_hidden_files_are_passed_over_unless_a_pattern_names_them(tmp_path):
    for folder in (tmp_path, tmp_path / "_temporary"):
        write_parts(folder, [3])
    (tmp_path / "_SUCCESS").write_text("")
    (tmp_path / ".a.parquet.crc").write_text("")
    (tmp_path / ".b.parquet").write_bytes((tmp_path / "a.parquet").read_bytes())
    for source in (tmp_path, f"{tmp_path}/*.parquet", f"{tmp_path}/**/*.parquet"):
        assert [part.name for part in list_parts(source)] == ["a.parquet"]
    assert [part.name for part in list_parts(f"{tmp_path}/.*.parquet")] == [".b.parquet"]


def test_pieces_are_runs_of_row_groups(tmp_path, monkeypatch):
    whole = write_parts(tmp_path, [1000, 150])
    monkeypatch.setattr(dataset_module, "PIECE_ROWS", 250)
    dataset = open_dataset(tmp_path)
    assert [(list(piece.groups), piece.n_rows) for piece in dataset.pieces] == [
        ([0, 1, 2], 300),
        ([3, 4, 5], 300),
        ([6, 7, 8], 300),
        ([9], 100),
        ([0, 1], 150),
    ]
    pd.testing.assert_frame_equal(read(dataset), whole)


def test_a_corrupt_part_is_named_and_the_rest_goes_on(tmp_path):
    whole = write_parts(tmp_path, [20, 20, 20])
    (tmp_path / "b.parquet").write_bytes(b"PAR1 nonsense PAR1")
    dataset = open_dataset(tmp_path)
    assert list(dataset.refused) == ["b.parquet"]
    assert "cannot be read" in dataset.notes()[0]
    assert len(read(dataset)) == 40 and whole.shape == (60, 5)


def test_a_part_that_breaks_while_it_is_read_is_named_once(tmp_path):
    write_parts(tmp_path, [500, 20])
    damage_pages(tmp_path / "a.parquet")
    dataset = open_dataset(tmp_path)
    assert not dataset.refused  # its footer is whole
    first, again = read(dataset), read(dataset)
    pd.testing.assert_frame_equal(first, again)
    assert list(dataset.refused) == ["a.parquet"]
    assert len(first) >= 20


def test_a_schema_that_drifts_is_named(tmp_path):
    write_parts(tmp_path, [20, 20, 20, 20])
    parquet.write_table(pa.table({"x": ["a", "b"], "z": [1.0, 2], "kind": ["", ""], "y": [0.0, 1], "key": [1, 2]}),
                        tmp_path / "b.parquet")  # fmt: skip
    parquet.write_table(pa.table({"x": [1.0]}), tmp_path / "c.parquet")
    ints = pa.Table.from_pandas(make_frame(4).assign(x=[1, 2, 3, 4]), preserve_index=False)
    parquet.write_table(ints, tmp_path / "d.parquet")  # whole numbers are numbers
    dataset = open_dataset(tmp_path)
    assert dataset.refused == {
        "b.parquet": "its column 'x' holds texts, and that of the first part numbers",
        "c.parquet": "it lacks the column 'z', 'kind', 'y', 'key'; it has 'x'",
    }
    assert len(read(dataset)) == 24
    assert len(read(open_dataset(tmp_path, ["y"]), columns=["y"])) == 26  # only columns that are asked for must agree


def test_an_empty_part_is_named(tmp_path):
    write_parts(tmp_path, [20, 0])
    dataset = open_dataset(tmp_path)
    assert dataset.empty == ["b.parquet"] and dataset.notes() == ["Parts without rows: 'b.parquet'."]
    assert len(read(dataset)) == 20


def test_nothing_to_use_is_an_error(tmp_path):
    with pytest.raises(TableError, match="there is no file or folder"):
        open_dataset(tmp_path / "none")
    with pytest.raises(TableError, match="there is no Parquet file in"):
        open_dataset(tmp_path)
    write_parts(tmp_path, [0])
    with pytest.raises(TableError, match="no part has rows"):
        open_dataset(tmp_path)
    (tmp_path / "a.parquet").write_text("no")
    with pytest.raises(TableError, match=r"a\.parquet: cannot be read"):
        open_dataset(tmp_path)

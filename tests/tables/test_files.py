import gzip
import os
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from zipfile import ZipFile

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest

from messy import OPTIONS
from vmg.estimators import TableModel
from vmg.tables import TableError, read_table, write_table
from vmg.tables.files import TextRules, scan_text


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_the_delimiter_is_found_out(text_file, delimiter):
    rows = [["a", "b c", "d"], ["1", '"x,y;z"', "3"], ["4", "w", "6"]]
    frame, notes = read_table(text_file("\n".join(delimiter.join(row) for row in rows)))
    assert frame.to_dict("list") == {"a": [1, 4], "b c": ["x,y;z", "w"], "d": [3, 6]}
    assert bool(notes) is (delimiter != ",")


XY = {"a": [1, 2], "b": ["x", "y"]}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x\n1\n2\n", {"x": [1, 2]}),
        ("x\n0.30000000000000004\n125001.33941348997\n1e-310\n", {"x": [0.1 + 0.2, 125001.33941348997, 1e-310]}),
        ("\n\n a , b \n1,2\n\n3,4\n", {"a": [1, 3], "b": [2, 4]}),
        *((ending.join(["", "a;b", "1;x", "2;y", ""]), XY) for ending in ("\n", "\r\n", "\r")),
        *((text, XY) for text in ("a;b\r1;x\r2;y", "sep=;\na;b\n1;x\n2;y\n", "sep=;\ra;b\r1;x\r2;y\r")),
        ('"sep=;"\r\na;b\r\n1;x\r\n2;y\r\n', XY),
        ('a, "b"\n1, "x, y"\n2,"u\nv"\n', {"a": [1, 2], "b": ["x, y", "u\nv"]}),
        ('a,b\n1,5" pipe\n2,"say ""so"""\n', {"a": [1, 2], "b": ['5" pipe', 'say "so"']}),
    ],
)
def test_rows_and_cells_of_a_text(text_file, text, expected):
    frame = read_table(text_file(text)).frame
    assert frame.to_dict("list") == expected
    assert all(frame[name].to_numpy().flags.writeable for name in frame)


def test_missing_cells_in_many_spellings(text_file):
    frame = read_table(text_file("a,b\n1,x\n?,y\nNA,-\n,N/A\n4, \n")).frame
    assert frame["a"].isna().tolist() == [False, True, True, True, False]
    assert frame["b"].isna().tolist() == [False, False, True, True, True]


def test_columns_without_a_name_are_left_out_and_said(text_file):
    frame, notes = read_table(text_file(",a,b\n0,1,2\n1,3,4\n"))
    assert list(frame.columns) == ["a", "b"]
    assert notes == ["1 column without a name left out (often row numbers)."]


def test_gzip_and_encodings(text_file):
    text = "größe,b\n1,2\n"
    for data in (gzip.compress(text.encode()), text.encode("utf-8-sig"), text.encode("utf-16")):
        frame, notes = read_table(text_file(data))
        assert list(frame.columns) == ["größe", "b"] and not notes
    frame, notes = read_table(text_file(text.encode("cp1252")))
    assert list(frame.columns) == ["größe", "b"] and "Windows-1252" in notes[0]


@pytest.mark.parametrize("name", ["out.parquet", "out.csv", "out.csv.gz"])
def test_what_is_written_can_be_read(tmp_path, name):
    frame = pd.DataFrame({"a": [1.5, 0.1], "b": ["x", "y"]})
    write_table(frame, tmp_path / name)
    pd.testing.assert_frame_equal(read_table(tmp_path / name).frame, frame)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_parquet_is_known_by_its_contents(tmp_path):
    frame = pd.DataFrame({"a": [1, 2], "day": pd.to_datetime(["2020-01-01", "2020-01-02"])})
    frame.to_parquet(tmp_path / "table")
    pd.testing.assert_frame_equal(read_table(tmp_path / "table").frame, frame)


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (b"", "is empty"),
        (b" \n\n", "is empty"),
        (",,\n,,\n", "no columns with a name"),
        ("a,b\n", "no rows, only a header"),
        (bytes(range(256)), "binary file"),
        (b"\x89PNG\r\n\x1a\n", "binary file"),
        (b"PK\x03\x04", "a zip archive, not a table"),
        (b"\x1f\x8b\x08broken", "cannot unpack"),
        (b"PAR1broken", "cannot read .* as Parquet"),
        ('{"a": 1}', "looks like JSON"),
        ("<html>", "looks like HTML"),
        ("1,2\n3,4\n", "must name the columns; got the numbers 1, 2"),
        ("a,b,a\n1,2,3\n", "several columns of the same name; rename 'a'"),
        ("Dear all,\nthis is, as you know, prose\n", "not a regular table"),
        ("a,b\n1,2\n3,4,5\n6,7\n", "not a regular table: Expected 2 fields in line 3, saw 3"),
        *(("a,b\n" + rows, "not a regular table") for rows in ('"1,2\n', '1,"x\n2,y\n3,z\n', '1,x\n2,"y')),
        ('a,b\n1,x\n2,"' + "y\n" * 200_000, "not a regular table"),
    ],
)
def test_what_is_no_table_is_said(text_file, contents, message):
    with pytest.raises(TableError, match=message):
        read_table(text_file(contents))


def test_files_that_cannot_be_read_or_written(tmp_path):
    with pytest.raises(TableError, match="there is no file"):
        read_table(tmp_path / "none.csv")
    for path in (tmp_path, "/dev/zero"):
        with pytest.raises(TableError, match=r"cannot read .*: it is a folder or a device, not a file"):
            read_table(path)
    with pytest.raises(TableError, match="cannot write"):
        write_table(pd.DataFrame({"a": [1]}), tmp_path / "none" / "out.csv")


# -- sizes and shapes that few files have -----------------------------------------------------------------------------


def test_lines_longer_than_the_csv_module_takes(text_file):
    names = [f"column_{k}" for k in range(1_000)]
    row = [f"{k / 7:.140f}" for k in range(1_000)]
    assert len(",".join(row)) > 131_072
    frame, _ = read_table(text_file("\n".join(map(",".join, [names, row, row]))))
    assert list(frame.columns) == names and len(frame) == 2
    frame, _ = read_table(text_file("a,b\n" + "x" * 200_000 + ",1\ny,2\n"))
    assert frame["a"].str.len().tolist() == [200_000, 1]


def test_characters_are_decoded_beyond_the_first_megabyte(text_file):
    rows = "".join(f"{k},ü{k % 3}\n" for k in range(150_000))
    frame, notes = read_table(text_file("a,b\n" + rows))
    assert len(frame) == 150_000 and frame["b"].iloc[-1] == "ü2" and not notes
    frame, notes = read_table(text_file(("a,b\n" + "1,x\n" * 300_000 + "2,ü\n").encode("cp1252")))
    assert frame["b"].iloc[-1] == "ü" and "Windows-1252" in notes[0]
    with pytest.raises(TableError, match="binary file"):
        read_table(text_file(b"a,b\n" + b"1,x\n" * 300_000 + b"\0\0"))


def test_a_bomb_of_gzip_is_refused_and_said(text_file, monkeypatch):
    monkeypatch.setattr("vmg.tables.files.FREE_BYTES", 2**16)
    packed = gzip.compress(b"a,b\n" + b"0,0\n" * 2_000_000, 9)
    with pytest.raises(TableError, match=f"at most [0-9,]+ bytes unpacked from {len(packed):,}; it has more"):
        read_table(text_file(packed))
    honest = gzip.compress("\n".join(["a,b", *(f"{k},{k * 0.37}" for k in range(30_000))]).encode())
    assert len(read_table(text_file(honest)).frame) == 30_000


def test_a_table_of_too_many_bytes_or_cells_is_refused(text_file, tmp_path, monkeypatch):
    path = tmp_path / "t.parquet"
    pa.parquet.write_table(pa.table({f"c{k}": np.zeros(1_000_000) for k in range(10)}), path)
    assert path.stat().st_size < 100_000
    with pytest.raises(TableError, match=r"at most 8,388,608 cells in [0-9,]+ bytes; got 1,000,000 rows of 10"):
        read_table(path)
    monkeypatch.setattr("vmg.tables.files.MAX_CELLS", 10)
    with pytest.raises(TableError, match="at most 10 cells"):
        read_table(path)
    monkeypatch.setattr("vmg.tables.files.MAX_BYTES", 1_000)
    with pytest.raises(TableError, match="at most 1,000 bytes; it has more"):
        read_table(text_file("a,b\n" + "1,2\n" * 300))


def test_reading_and_encoding_takes_at_most_three_times_the_memory_of_the_file(tmp_path):
    path = tmp_path / "numbers.csv"
    rows = "".join(",".join(f"{(k * j) % 997 / 7:.4f}" for j in range(1, 11)) + "\n" for k in range(1, 50_001))
    with path.open("w") as file:
        file.write(",".join("abcdefghij") + "\n")
        for _ in range(12):
            file.write(rows)
    program = """
import resource, sys
from vmg.tables import TableEncoder, read_table
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
frame = read_table(sys.argv[1]).frame
features = TableEncoder.fit(frame).transform(frame)
print(len(features), (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True)
    n_rows, used = map(int, done.stdout.split())
    assert n_rows == 600_000 and used < 3 * path.stat().st_size


def test_a_file_that_changes_while_it_is_read_is_refused(text_file):
    path = text_file("a,b\n1,2\n3,4\n")
    for text in ("a,b\n1,2\n3,4\n5,6\n", "a,b\n1,2\n", "a,b\n1,2\n3,x\n"):
        path.write_text("a,b\n1,2\n3,4\n")
        table = scan_text(path, TextRules())
        path.write_text(text)
        with pytest.raises(TableError, match="has changed while it was read"):
            list(table.batches(table.schema(empty=pa.float64())))


def test_damaged_parquet_is_said(tmp_path):
    path = tmp_path / "t.parquet"
    pd.DataFrame({"a": range(50), "b": [f"x{k % 7}" for k in range(50)]}).to_parquet(path)
    whole = path.read_bytes()
    for place in (-1, -5):  # the last bytes tell where all else is
        data = bytearray(whole)
        data[place] ^= 0xFF
        path.write_bytes(bytes(data))
        with pytest.raises(TableError, match=r"cannot read .* as Parquet"):
            read_table(path)
    for length in (5, 100, len(whole) - 3):
        path.write_bytes(whole[:length])
        with pytest.raises(TableError, match=r"cannot read .* as Parquet"):
            read_table(path)


# -- rows and cells that readers disagree on --------------------------------------------------------------------------


def test_short_rows_are_filled(text_file):
    frame, _ = read_table(text_file("a,b,c\n1,x,2\n3\n\n4,y\n"))
    assert frame["a"].tolist() == [1, 3, 4] and frame["b"].isna().tolist() == [False, True, False]
    assert frame["c"].isna().tolist() == [False, True, True]


def test_a_column_of_signs_has_no_missing_minus(text_file):
    frame, _ = read_table(text_file("a,b,c\n+,-,-\n-,?,5\n,-,+\n"))
    assert frame["a"].isna().tolist() == [False, False, True] and frame["a"].tolist()[:2] == ["+", "-"]
    assert frame["b"].isna().all() and frame["c"].isna().tolist() == [True, False, False]


def test_words_that_are_missing_can_be_chosen(text_file):
    path = text_file("country,x,y\nNA,-999,1\nDE,4,none\n")
    frame, _ = read_table(path, na_values=["-999", "none"])
    assert frame["country"].tolist() == ["NA", "DE"]
    assert frame["x"].isna().tolist() == [True, False] and frame["y"].isna().tolist() == [False, True]


def test_a_model_reads_a_minus_as_at_its_fit(text_file):
    rows = "".join(f"{'+-'[k % 2]},{'-NA'[k % 3 :: 3]},{k % 7},{'+-'[k // 2 % 2]}\n" for k in range(60))
    frame = read_table(text_file("sign,other,x,y\n" + rows)).frame
    model = TableModel.fit(frame, "y", options=OPTIONS)
    assert list(model.estimator.classes_) == ["+", "-"]
    new = read_table(text_file("sign,x,other,y\n-,3,a,-\n-,4,-,-\n", "new.csv"), **model.reading).frame
    assert new["sign"].tolist() == ["-", "-"] and new["y"].tolist() == ["-", "-"]
    assert new["other"].isna().tolist() == [False, True]
    assert not any("missing:sign" in text for text in model.predict_frame(new)["flags"])


def test_signs_alone_are_written_as_they_are(tmp_path):
    frame = pd.DataFrame({"class": ["+", "-", "+1+1", "a\r=1+1", "\r=2"]})
    write_table(frame, tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_bytes() == b'class\n+\n-\n\'+1+1\n"a\n=1+1"\n"\'\n=2"\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("5.1,3.5,setosa\n4.9,3.0,setosa\n", "'5.1', '3.5'; --no-header"),
        ("2020-01-01,5,a\n2020-01-02,6,b\n", "'2020-01-01', '5'; --no-header"),
        ("country,1990,1991\nA,1,2\nB,3,4\n", None),
        ("1990,x\nu,1\n", None),
        ("a,b\n1,2\n", None),
        ("id1,day2\n1,2020-01-01\n", None),
    ],
)
def test_a_first_line_of_values_is_noticed(text_file, text, said):
    notes = read_table(text_file(text)).notes
    assert notes == [] if said is None else said in notes[0]


def test_a_table_without_a_header(text_file):
    path = text_file("2020-01-01;1,5;x\n2020-01-02;2,5;y\n")
    with pytest.raises(TableError, match="must name the columns; got the values '2020-01-01', '5'"):
        read_table(text_file("2020-01-01,5\n2020-01-02,6\n", "values.csv"))
    frame, _ = read_table(path, header=False)
    assert list(frame.columns) == ["column 1", "column 2", "column 3"] and len(frame) == 2
    assert frame.attrs["decimal_comma"]
    assert len(read_table(text_file("\n1,2\n3,4\n"), header=False).frame) == 2


def test_pipes_are_read_in_any_encoding(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    text = "größe,b\n1,2\n3\n".encode("cp1252")
    writer = threading.Thread(target=lambda: (tmp_path / "pipe").write_bytes(text))
    writer.start()
    frame, notes = read_table(tmp_path / "pipe")
    writer.join()
    assert frame["größe"].tolist() == [1, 3] and "Windows-1252" in notes[0]


# -- databases and workbooks ------------------------------------------------------------------------------------------

SALES = {"city": ["Rome", None, "Oslo"], "price": [1.5, 2.0, 3.0]}


def test_tables_of_a_database(tmp_path):
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as connection:
        pd.DataFrame(SALES).to_sql("sales", connection, index=False)
        expected = [{"city": c, "price": p} for c, p in zip(*SALES.values(), strict=True)]
        assert read_table(path).frame.to_dict("records") == expected
        pd.DataFrame({"a": [1]}).to_sql('my "own"', connection, index=False)
    assert read_table(f"{path}::sales").frame.to_dict("records") == expected
    assert read_table(f'{path}::my "own"').frame.to_dict("list") == {"a": [1]}
    for name in ("", "::none", '::sales"; DROP TABLE sales; --'):
        with pytest.raises(
            TableError, match=r"must name one of the tables 'my \"own\"', 'sales', as in file.db::table"
        ):
            read_table(f"{path}{name}")
    path.write_bytes(path.read_bytes()[:4096] + bytes(3000))
    with pytest.raises(TableError, match=r"cannot read .*shop\.db as a database"):
        read_table(path)
    with pytest.raises(TableError, match="there is no file"):
        read_table(f"{tmp_path / 'none.db'}::sales")


@pytest.mark.parametrize(("start", "package"), [(bytes(8) + b"DUCK", "duckdb"), (b"", "openpyxl")])
def test_a_package_that_is_missing_is_named(tmp_path, monkeypatch, start, package):
    monkeypatch.setitem(sys.modules, package, None)
    if package == "openpyxl":
        with ZipFile(tmp_path / "t", "w") as archive:
            archive.writestr("xl/workbook.xml", "")
    else:
        (tmp_path / "t").write_bytes(start)
    with pytest.raises(TableError, match=package):
        read_table(tmp_path / "t")


def test_tables_of_duckdb(tmp_path):
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect(str(tmp_path / "t.duck")) as connection:
        connection.execute(
            "CREATE TABLE sales AS SELECT * FROM (VALUES ('Rome', 1.5), ('Oslo', 2.0)) AS t(city, price)"
        )
    frame = read_table(f"{tmp_path / 't.duck'}::sales").frame
    assert frame["city"].tolist() == ["Rome", "Oslo"] and frame["price"].astype(float).tolist() == [1.5, 2.0]


def test_sheets_of_a_workbook(tmp_path):
    pytest.importorskip("openpyxl")
    path = tmp_path / "book.xlsx"
    with pd.ExcelWriter(path) as writer:
        pd.DataFrame(SALES | {"zip": ["01", "02", "NA"]}).to_excel(writer, sheet_name="sales", index=False)
        pd.DataFrame({"a": [1, 2]}).to_excel(writer, sheet_name="other", index=False)
    frame = read_table(path, texts=["zip"]).frame
    assert frame["city"].isna().tolist() == [False, True, False] and frame["price"].tolist() == [1.5, 2.0, 3.0]
    assert frame["zip"].tolist()[:2] == ["01", "02"] and frame["zip"].isna()[2]
    assert read_table(f"{path}::other").frame.to_dict("list") == {"a": [1, 2]}
    assert list(read_table(f"{path}::other", header=False).frame) == ["column 1"]
    with pytest.raises(TableError, match="as a workbook: Worksheet named 'none' not found"):
        read_table(f"{path}::none")

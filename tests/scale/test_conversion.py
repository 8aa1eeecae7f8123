"""Text that is converted a block at a time has the cells of text that is read whole."""

import gzip

import numpy as np
import pandas as pd
import pytest

from vmg.scale import convert_csv, open_dataset
from vmg.tables import TableError, read_table


def rows(n=400):
    """Cells that can be read in several ways: codes, decimal commas, units, dates, signs, booleans and holes."""
    rng = np.random.default_rng(0)
    lines = ["code;size;way;amount;day;sign;flag;late;count;note;empty"]
    for k in range(n):
        cells = [
            f"{k % 97:05d}",
            f"{rng.integers(1, 9)}.{rng.integers(100, 999)}",
            f"{rng.uniform(1, 9):.1f} km".replace(".", ","),
            "NA" if k % 11 == 0 else f"{rng.uniform(-9, 9):.2f}".replace(".", ","),
            f"{k % 28 + 1:02d}.03.2021",
            "+-"[k % 2],
            "" if k % 13 == 0 else "true",
            "n. a." if k == n - 3 else str(k),
            "-" if k % 17 == 0 else str(k % 5),
            '"a; ""b""\nc"' if k % 50 == 0 else f" ü{k % 3} ",
            "?",
        ]
        lines.append(";".join(cells))
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("encoding", ["utf-8", "cp1252", "utf-16"])
@pytest.mark.parametrize("block", [2**12, 2**22])
def test_cells_are_those_of_a_table_that_is_read_whole(tmp_path, monkeypatch, encoding, block):
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(rows().encode(encoding)))
    whole = read_table(path).frame
    monkeypatch.setattr("vmg.tables.files.BLOCK", block)
    convert_csv(path, tmp_path / "a.parquet")
    converted = pd.read_parquet(tmp_path / "a.parquet")
    assert converted["empty"].isna().all() and whole["empty"].isna().all()
    pd.testing.assert_frame_equal(converted.drop(columns="empty"), whole.drop(columns="empty"))
    assert whole["code"].iloc[5] == "00005" and whole["size"].dtype == object  # 1.234 beside decimal commas
    assert open_dataset(tmp_path / "a.parquet").decimal_comma is True
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a.csv.gz", "a.parquet"]


def test_rules_of_a_caller_hold(tmp_path):
    (tmp_path / "a.csv").write_text("1,none\n2,5\n")
    rules = {"header": False, "na_values": ["none"], "texts": ["column 1"], "decimal_comma": False}
    convert_csv(tmp_path / "a.csv", tmp_path / "a.parquet", **rules)
    converted = pd.read_parquet(tmp_path / "a.parquet")
    pd.testing.assert_frame_equal(converted, read_table(tmp_path / "a.csv", **rules).frame)
    assert converted["column 1"].tolist() == ["1", "2"] and converted["column 2"].isna().tolist() == [True, False]


def test_short_rows_and_late_surprises(tmp_path, monkeypatch):
    monkeypatch.setattr("vmg.tables.files.BLOCK", 1_000)
    text = "a,b\n" + "1,2\n" * 2_000 + "3\n" + "4,x\n"
    (tmp_path / "a.csv").write_text(text)
    convert_csv(tmp_path / "a.csv", tmp_path / "a.parquet")
    converted = pd.read_parquet(tmp_path / "a.parquet")
    assert len(converted) == 2_002 and converted["a"].dtype == np.int64
    assert converted["b"].tolist()[-2:] == [None, "x"]
    (tmp_path / "a.csv").write_text(text + "1,2,3\n")
    with pytest.raises(TableError, match="Expected 2 fields in line 2004, saw 3"):
        convert_csv(tmp_path / "a.csv", tmp_path / "b.parquet")
    assert not (tmp_path / "b.parquet").exists()

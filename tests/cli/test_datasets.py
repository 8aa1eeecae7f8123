"""Commands on datasets: folders, patterns, groups, updates."""

import json
import sys
from pathlib import Path

import pandas as pd
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "streaming"))

from parquet_parts import make_frame, write_parts

from vmg.cli.app import run

FAST = ["--members", "2", "--hidden", "8", "--max-iter", "20", "--quiet"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli_model")
    make_frame(120, seed=9).to_parquet(folder / "train.parquet")
    path = folder / "small.vmg"
    assert run(["fit", f"{folder}/train.parquet", "-t", "y", "--exclude", "key", "-o", str(path), *FAST]) == 0
    return str(path)


def test_predict_scores_a_pattern_into_a_folder(model, tmp_path, capsys):
    write_parts(tmp_path / "in", [30, 20])
    command = ["predict", model, f"{tmp_path}/in/*.parquet", "--out", f"{tmp_path}/out/", "--jobs", "1"]
    assert run([*command, "--keep", "key", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["written"] == ["a.parquet", "b.parquet"]
    assert run([*command, "--keep", "key"]) == 0
    assert "2 files from an earlier run passed over" in capsys.readouterr().out
    assert pd.read_parquet(tmp_path / "out" / "a.parquet")["key"].tolist() == list(range(30))


def test_predict_names_parts_that_are_bad_and_scores_the_rest(model, tmp_path, capsys):
    write_parts(tmp_path / "in", [30, 20, 0])
    (tmp_path / "in" / "a.parquet").write_bytes(b"PAR1")
    assert run(["predict", model, f"{tmp_path}/in", "--out", f"{tmp_path}/out", "--jobs", "1"]) == 2
    said = capsys.readouterr().err
    assert "1 part not scored, the rest is. a.parquet: cannot be read" in said and "Part c.parquet has no rows" in said
    assert len(pd.read_parquet(tmp_path / "out" / "b.parquet")) == 20


def test_predict_wants_a_folder_for_a_dataset(model, tmp_path, capsys):
    write_parts(tmp_path / "in", [30])
    assert run(["predict", model, f"{tmp_path}/in"]) == 2
    assert "must be a folder where DATA is a dataset" in capsys.readouterr().err

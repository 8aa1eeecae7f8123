import multiprocessing
import os
import signal
import time

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from parquet_parts import damage_pages, make_frame, write_parts
from pyarrow import parquet

import vmg
from vmg.estimators import TableModel
from vmg.files import RunError
from vmg.scale import open_dataset, score_batches, score_dataset
from vmg.scale.scoring import ScoringTask, score_piece
from vmg.tables import TableError


def read(folder):
    return pd.concat([pd.read_parquet(path) for path in sorted(folder.rglob("*.parquet"))], ignore_index=True)


def files(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.parquet"))}


def test_a_folder_is_scored_as_one_table_is(model, tmp_path):
    whole = write_parts(tmp_path / "in", [250, 90])
    report = score_dataset(model, tmp_path / "in", tmp_path / "out", coverage=0.8, keep=["key"], n_jobs=1)
    assert report.n_rows == 340 and report.written == ["a.parquet", "b.parquet"] and not report.refused
    expected = vmg.load(model).predict_frame(whole, 0.8)
    found = read(tmp_path / "out")
    np.testing.assert_array_equal(found["key"], whole["key"])
    pd.testing.assert_frame_equal(found.drop(columns="key"), expected, rtol=1e-12)


def test_processes_write_the_same_bytes_as_one(model, tmp_path):
    write_parts(tmp_path / "in", [250, 90, 10])
    score_dataset(model, tmp_path / "in", tmp_path / "one", n_jobs=1)
    score_dataset(model, tmp_path / "in", tmp_path / "two", n_jobs=2)
    assert files(tmp_path / "one") == files(tmp_path / "two")


def test_a_part_of_many_rows_becomes_several_files(model, tmp_path, monkeypatch):
    from vmg.scale import dataset

    whole = write_parts(tmp_path / "in" / "year=2024", [350])
    monkeypatch.setattr(dataset, "PIECE_ROWS", 200)
    report = score_dataset(model, tmp_path / "in", tmp_path / "out", keep=["year", "key"], n_jobs=1)
    assert report.written == ["year=2024/a-00000.parquet", "year=2024/a-00001.parquet"]
    found = pd.concat([parquet.ParquetFile(tmp_path / "out" / name).read().to_pandas() for name in report.written])
    assert found["key"].tolist() == whole["key"].tolist() and set(found["year"]) == {2024}


def replace_rows(folder):
    make_frame(40, seed=77).to_parquet(folder / "in" / "b.parquet")  # as many rows as before


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "out" / "b.parquet").unlink(),
        lambda folder: damage_pages(folder / "out" / "b.parquet"),
        replace_rows,
    ],
    ids=["an output is gone", "an output is damaged", "a part was replaced"],
)
def test_a_run_goes_on_with_the_parts_that_are_not_as_they_were(model, tmp_path, change):
    write_parts(tmp_path / "in", [30, 40, 50])
    score_dataset(model, tmp_path / "in", tmp_path / "out", n_jobs=1)
    whole = files(tmp_path / "out")
    change(tmp_path)
    report = score_dataset(model, tmp_path / "in", tmp_path / "out", n_jobs=1)
    assert report.written == ["b.parquet"] and report.found == ["a.parquet", "c.parquet"] and report.n_rows == 40
    assert (files(tmp_path / "out") == whole) is (change is not replace_rows)
    expected = vmg.load(model).predict_frame(pd.read_parquet(tmp_path / "in" / "b.parquet"))
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "out" / "b.parquet"), expected, rtol=1e-12)


def test_another_run_may_not_go_on(model, tmp_path):
    write_parts(tmp_path / "in", [30])
    score_dataset(model, tmp_path / "in", tmp_path / "out", n_jobs=1)
    with pytest.raises(RunError, match=r"coverage = 0\.5; got 0\.9"):
        score_dataset(model, tmp_path / "in", tmp_path / "out", coverage=0.5, n_jobs=1)
    (tmp_path / "in" / "a.parquet").rename(tmp_path / "in" / "b.parquet")
    with pytest.raises(RunError, match=r"predictions of rows that are no longer in .*: 'a\.parquet'"):
        score_dataset(model, tmp_path / "in", tmp_path / "out", n_jobs=1)


def _slowly(task):
    """Score a piece, and say so once a batch is written, before the file is whole."""
    from vmg.scale import scoring

    original = scoring.score_batches

    def slow(*args, **kwargs):
        for batch in original(*args, **kwargs):
            yield batch
            (open(task.out + ".begun", "w")).close()
            time.sleep(60)

    scoring.score_batches = slow
    score_piece(task)


def test_a_kill_leaves_no_half_file(model, tmp_path):
    write_parts(tmp_path / "in", [30])
    (tmp_path / "out").mkdir()
    [piece] = open_dataset(tmp_path / "in").pieces
    target = tmp_path / "out" / "a.parquet"
    process = multiprocessing.get_context("spawn").Process(
        target=_slowly, args=(ScoringTask(piece, str(model), str(target)),)
    )
    process.start()
    while not target.with_name("a.parquet.begun").exists():
        assert process.is_alive()
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert not target.exists()
    target.with_name("a.parquet.begun").unlink()
    report = score_dataset(model, tmp_path / "in", tmp_path / "again", n_jobs=1)
    assert report.written == ["a.parquet"]


def test_bad_parts_are_named_and_the_rest_is_scored(model, tmp_path):
    write_parts(tmp_path / "in", [500, 30, 0, 40, 20])
    damage_pages(tmp_path / "in" / "a.parquet")
    (tmp_path / "in" / "b.parquet").write_bytes(b"PAR1")
    parquet.write_table(pa.table({"x": [1.0], "z": [2.0]}), tmp_path / "in" / "e.parquet")
    report = score_dataset(model, tmp_path / "in", tmp_path / "out", n_jobs=1)
    assert report.written == ["d.parquet"] and report.n_rows == 40
    assert report.empty == ["c.parquet"]
    reasons = report.refused
    assert set(reasons) == {"a.parquet", "b.parquet", "e.parquet"}
    assert "cannot be read" in reasons["a.parquet"] and "lacks the column 'kind'" in reasons["e.parquet"]
    assert sorted(files(tmp_path / "out")) == ["d.parquet"]


def test_the_plain_function_takes_and_gives_record_batches(model):
    frame = make_frame(50, seed=3)
    batches = pa.Table.from_pandas(frame, preserve_index=False).to_batches(max_chunksize=20)
    found = list(score_batches(batches, str(model), coverage=0.7, keep=["key"]))
    assert [batch.num_rows for batch in found] == [20, 20, 10]
    assert all(batch.schema == found[0].schema for batch in found)
    table = pa.Table.from_batches(found).to_pandas()
    pd.testing.assert_frame_equal(table.drop(columns="key"), vmg.load(model).predict_frame(frame, 0.7), rtol=1e-12)
    with pytest.raises(TableError, match="lacks the column 'z'"):
        list(score_batches([batches[0].drop_columns(["z"])], str(model)))
    kept = pa.Table.from_batches(score_batches(batches, str(model), keep=["y"])).to_pandas()
    assert kept["y"].equals(frame["y"]) and kept["y_predicted"].equals(table["y"])


def test_a_model_that_was_replaced_is_loaded_again_and_may_not_go_on(model, tmp_path):
    write_parts(tmp_path / "in", [30])
    path = tmp_path / "model.vmg"
    path.write_bytes(model.read_bytes())
    score_dataset(path, tmp_path / "in", tmp_path / "out", n_jobs=1)
    frame = make_frame(120, seed=9)
    options = {"n_members": 2, "hidden_layer_sizes": (8,), "max_iter": 20, "random_state": 0}
    other = TableModel.fit(frame.assign(y=-frame["y"]), "y", exclude=["key"], options=options)
    other.save(path)
    batch = pa.RecordBatch.from_pandas(frame)
    [scored] = score_batches([batch], str(path))
    np.testing.assert_allclose(scored.column("y"), other.predict_frame(frame)["y"], rtol=1e-12)
    with pytest.raises(RunError, match="must be of a run with the same model; got another"):
        score_dataset(path, tmp_path / "in", tmp_path / "out", n_jobs=1)


def test_parts_of_one_stem_have_outputs_of_their_own(model, tmp_path):
    write_parts(tmp_path / "in", [20])
    make_frame(10, seed=5).to_parquet(tmp_path / "in" / "a.pq")
    report = score_dataset(model, tmp_path / "in", tmp_path / "out", n_jobs=1)
    assert report.written == ["a.parquet", "a.pq.parquet"] and report.n_rows == 30
    assert len(pd.read_parquet(tmp_path / "out" / "a.parquet")) == 20


def test_two_runs_may_not_share_a_folder_at_one_time(model, tmp_path, monkeypatch):
    write_parts(tmp_path / "in", [30])
    refused = []

    def meanwhile(task):
        with pytest.raises(RunError, match="in use by another process") as error:
            score_dataset(model, tmp_path / "in", tmp_path / "out", n_jobs=1)
        refused.append(error)
        return score_piece(task)

    monkeypatch.setattr("vmg.scale.scoring.score_piece", meanwhile)
    score_dataset(model, tmp_path / "in", tmp_path / "out", n_jobs=1)
    assert len(refused) == 1

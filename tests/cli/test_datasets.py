"""Commands on datasets: folders, patterns, groups, updates."""

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pandas as pd
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "scale"))

from parquet_parts import make_frame, write_parts

import vmg
from vmg.cli.app import run
from vmg.scale import load_fleet

FAST = ["--members", "2", "--hidden", "8", "--max-iter", "20", "--quiet"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli_model")
    make_frame(120, seed=9).to_parquet(folder / "train.parquet")
    path = folder / "small.vmg"
    assert run(["fit", f"{folder}/train.parquet", "-t", "y", "--ignore", "key", "-o", str(path), *FAST]) == 0
    return str(path)


def fit_command(folder, data, out, *options):
    """A short fit of y that says what it does."""
    return ["fit", f"{folder}/{data}", "-t", "y", "--ignore", "key", "-o", f"{folder}/{out}", *FAST[:-1], *options]


def fit_fleet(folder, n_rows=90):
    """Models of y by kind, in the folder fleet; the path of their rows."""
    train = f"{folder}/train.parquet"
    make_frame(n_rows).to_parquet(train)
    assert run(["fit", train, "-t", "y", "--ignore", "key", "--by", "kind", "-o", f"{folder}/fleet", *FAST]) == 0
    return train


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


def test_points_and_probabilities_are_those_of_one_table(model, tmp_path):
    write_parts(tmp_path / "in", [30])
    how = ["--point", "median", "--above", "0.5", "--above", "1"]
    assert run(["predict", model, f"{tmp_path}/in", "-o", f"{tmp_path}/out/", "--jobs", "1", *how]) == 0
    assert run(["predict", model, f"{tmp_path}/in/a.parquet", "-o", f"{tmp_path}/one.parquet", *how]) == 0
    folder, table = (pd.read_parquet(tmp_path / name) for name in ("out/a.parquet", "one.parquet"))
    pd.testing.assert_frame_equal(folder, table)
    assert {"y_above_0.5", "y_above_1"} <= set(folder)


def test_fit_reads_a_folder_a_batch_at_a_time(tmp_path, capsys):
    write_parts(tmp_path / "sales", [200, 100, 0])
    command = fit_command(tmp_path, "sales", "m.vmg", "--json")
    assert run(command) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rows"] == 300 and any("300 of 300 rows" in note for note in found["notes"])
    assert run([*command, "--conformal", "0.2"]) == 2
    assert "needs a table that is read whole" in capsys.readouterr().err


def test_fit_reads_text_as_it_is_told(tmp_path, capsys):
    make_frame(120).to_csv(tmp_path / "a.csv", index=False)
    command = fit_command(tmp_path, "a.csv", "m.vmg", "--json")
    for option in ("--stream", "--in-memory"):
        assert run([*command, option]) == 0
        notes = json.loads(capsys.readouterr().out)["notes"]
        assert any("hidden layers and calibration learned" in note for note in notes) == (option == "--stream")


def test_update_takes_new_rows_in(model, tmp_path, capsys):
    write_parts(tmp_path / "new", [30, 20])
    assert run(["update", model, f"{tmp_path}/new", "-o", f"{tmp_path}/m.vmg"]) == 0
    assert "50 rows taken in. Model written to" in capsys.readouterr().out
    make_frame(10).to_csv(tmp_path / "more.csv", index=False)
    assert run(["update", f"{tmp_path}/m.vmg", f"{tmp_path}/more.csv", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 10


def test_an_update_says_what_the_model_cannot_use(model, tmp_path, capsys):
    make_frame(30, seed=5).assign(kind="violet").to_parquet(tmp_path / "new.parquet")
    update = ["update", model, f"{tmp_path}/new.parquet", "-o", f"{tmp_path}/m.vmg"]
    said = "Column 'kind' has values unknown from the fit: 'violet'."
    assert run(update) == 0 and said in " ".join(capsys.readouterr().err.split())
    assert run([*update, "--json"]) == 0 and said in json.loads(capsys.readouterr().out)["notes"]


def torchrun(*command):
    start = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", free_port()]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run([*start, *command], env=environment, capture_output=True, text=True, timeout=120)


def test_torchrun_fits_one_model_with_two_processes(tmp_path):
    """Processes read their own pieces, and the first writes the model."""
    write_parts(tmp_path / "sales", [400, 300, 200, 100])
    command = ["fit", f"{tmp_path}/sales", "-t", "y", "--ignore", "key", *FAST]
    done = torchrun("-m", "vmg", *command, "-o", f"{tmp_path}/two.vmg")
    assert done.returncode == 0, done.stderr[-2000:]
    assert run([*command, "-o", f"{tmp_path}/one.vmg"]) == 0
    frame = make_frame(40, seed=5)
    one, two = (vmg.load(tmp_path / f"{name}.vmg") for name in ("one", "two"))
    assert two.estimator.ensemble_.members.head.count[0] == 1000
    pd.testing.assert_frame_equal(one.predict_frame(frame), two.predict_frame(frame), rtol=1e-4)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def test_fit_by_group_and_predict_by_group(tmp_path, capsys):
    frame = pd.concat([make_frame(n, seed=k).assign(shop=f"shop {k}") for k, n in enumerate([60, 40, 1])])
    frame.to_parquet(tmp_path / "sales.parquet", index=False)
    command = fit_command(tmp_path, "sales.parquet", "fleet", "--by", "shop")
    assert run(command) == 0
    said = capsys.readouterr().out
    assert "2 models written to" in said and "Group 'shop 2' has no model of its own: it has 1 row" in said
    assert run([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["found"] == 2
    assert run(["predict", f"{tmp_path}/fleet", f"{tmp_path}/sales.parquet", "-o", f"{tmp_path}/p.csv"]) == 0
    assert "not predicted: 'shop 2'" in capsys.readouterr().err
    assert pd.read_csv(tmp_path / "p.csv")["y"].notna().sum() == 100
    assert run([*command, "--conformal", "0.2"]) == 2


def test_options_that_a_dataset_or_a_fleet_cannot_follow_are_refused(model, tmp_path, capsys):
    write_parts(tmp_path / "sales", [60])
    fit = ["fit", f"{tmp_path}/sales", "-t", "y", "-o", f"{tmp_path}/m", *FAST]
    for option in ("--cv=3", "--time=key", "--holdout-by=kind", "--conformal=0.2", "--holdout=0.3"):
        for by, why in (([], "needs a table that is read whole"), (["--by=kind"], "cannot be had together with --by")):
            assert run([*fit, *by, option]) == 2
            assert f"{option.split('=')[0]}: {why}" in " ".join(capsys.readouterr().err.split())
    assert run([*fit, "--resume"]) == 2 and "--resume: needs a table that" in " ".join(capsys.readouterr().err.split())
    assert run([*fit, "--in-memory"]) == 2 and "needs one file and one process" in capsys.readouterr().err
    (tmp_path / "bare").write_bytes((tmp_path / "sales" / "a.parquet").read_bytes())
    with closing(sqlite3.connect(tmp_path / "s.db")) as connection:
        make_frame(9).to_sql("sales", connection)
    for data in ("sales", "sales/a.parquet", "sales/*", "bare", "s.db", "s.db::sales"):
        for option in (["--na", "none"], ["--no-header"]):
            assert run(["fit", f"{tmp_path}/{data}", *fit[2:], *option]) == 2
            assert "is for text files" in capsys.readouterr().err
    for option in (["--pool"], ["--jobs", "2"]):
        assert run([*fit, *option]) == 2 and "needs --by" in capsys.readouterr().err
    assert run(["predict", model, f"{tmp_path}/sales"]) == 2
    assert "must be a folder where DATA is a dataset" in capsys.readouterr().err
    score = ["predict", model, f"{tmp_path}/sales", "-o", f"{tmp_path}/out/", "--jobs", "1"]
    assert run([*score, "--decimal", ","]) == 2 and "--decimal" in capsys.readouterr().err
    assert not (tmp_path / "m").exists() and not (tmp_path / "out").exists()


def test_options_about_columns_hold_for_datasets_and_fleets(tmp_path):
    frame = make_frame(90).assign(code=lambda rows: rows.index % 3, day="03/04/2024")
    (tmp_path / "sales").mkdir()
    frame.to_parquet(tmp_path / "sales" / "a.parquet", index=False)
    fit = ["fit", f"{tmp_path}/sales", "-t", "y", "--ignore", "key", "--categorical", "code", *FAST]
    assert run([*fit, "-o", f"{tmp_path}/one.vmg"]) == 0
    assert run([*fit, "-o", f"{tmp_path}/fleet", "--by", "kind"]) == 0
    fleet = load_fleet(tmp_path / "fleet")
    for one in (vmg.load(tmp_path / "one.vmg"), fleet.model("red")):
        assert {column.name: column.kind for column in one.encoder.columns}["code"] == "category"
        assert "key" not in one.encoder.column_names


def test_values_outside_are_an_error_where_that_is_asked_for(model, tmp_path, capsys):
    write_parts(tmp_path / "in", [30])
    frame = make_frame(30).assign(x=1e6)
    frame.to_parquet(tmp_path / "in" / "a.parquet")
    assert run(["predict", model, f"{tmp_path}/in", "-o", f"{tmp_path}/out/", "--outside", "error", "--jobs", "1"]) == 2
    assert "must be inside the range of the training rows" in capsys.readouterr().err
    fit_fleet(tmp_path)
    command = ["predict", f"{tmp_path}/fleet", f"{tmp_path}/in/a.parquet", "-o", f"{tmp_path}/p.csv"]
    assert run([*command, "--outside", "error"]) == 2
    assert "must be inside the range of the training rows" in capsys.readouterr().err


def test_a_fleet_without_its_column_is_one_line(tmp_path, capsys):
    train = fit_fleet(tmp_path)
    make_frame(9).drop(columns="kind").to_parquet(tmp_path / "new.parquet")
    assert run(["predict", f"{tmp_path}/fleet", f"{tmp_path}/new.parquet"]) == 2
    assert "the table has no column 'kind'" in capsys.readouterr().err
    for contents in ("[]", "{", '{"holds": "fleet"}'):
        (tmp_path / "fleet" / "index.json").write_text(contents)
        assert run(["predict", f"{tmp_path}/fleet", train]) == 2
        assert "does not describe a fleet" in capsys.readouterr().err


def test_an_update_in_place_keeps_the_model_as_it_was(model, tmp_path, capsys):
    path = tmp_path / "m.vmg"
    path.write_bytes(Path(model).read_bytes())
    make_frame(30, seed=3).to_parquet(tmp_path / "new.parquet")
    command = ["update", str(path), f"{tmp_path}/new.parquet"]
    assert run(command) == 0
    assert (tmp_path / "m.vmg.before").read_bytes() == Path(model).read_bytes() != path.read_bytes()
    updated = path.read_bytes()
    assert run(command) == 2 and "would count twice" in capsys.readouterr().err
    assert path.read_bytes() == updated
    assert run([*command, "--again"]) == 0


def test_two_updates_at_once_are_both_taken_in(model, tmp_path):
    path = tmp_path / "m.vmg"
    path.write_bytes(Path(model).read_bytes())
    commands = []
    for k in (1, 2):
        make_frame(30, seed=k).to_parquet(tmp_path / f"{k}.parquet")
        commands.append([sys.executable, "-m", "vmg", "update", str(path), f"{tmp_path}/{k}.parquet"])
    running = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for command in commands]
    errors = [process.communicate(timeout=120)[1] for process in running]
    assert [process.returncode for process in running] == [0, 0], errors
    assert vmg.load(path).estimator.ensemble_.members.head.count[0] == 120 + 60


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("source", ["-", "rows.csv"], ids=["standard input", "text"])
def test_terminated_commands_leave_no_copies_of_the_data(tmp_path, source, end):
    """A text is converted in a folder that only a kill leaves; what comes by a pipe has no name at any time."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    rows = make_frame(400).to_csv(index=False)
    (tmp_path / "rows.csv").write_text(rows)
    way = "--in-memory" if source == "-" else "--stream"
    options = ["-t", "y", way, "--max-iter", "1000000", "--hidden", "400,400"]
    environment = {**os.environ, "TMPDIR": str(temporary), "PYTHONUNBUFFERED": "1"}
    with open(tmp_path / "said", "wb") as said:
        streams = {"stdin": subprocess.PIPE, "stdout": said, "stderr": said}
        command = [sys.executable, "-m", "vmg", "fit", source, *options]
        process = subprocess.Popen(command, cwd=tmp_path, env=environment, **streams)
    process.stdin.write(rows.encode())
    process.stdin.close()
    deadline = time.monotonic() + 120
    while b"Columns used" not in (tmp_path / "said").read_bytes() and time.monotonic() < deadline:
        assert process.poll() is None, (tmp_path / "said").read_text()
        time.sleep(0.05)
    kept = list(temporary.iterdir())
    assert len(kept) == (source == "rows.csv")
    process.send_signal(end)
    assert process.wait(60) == (143 if end == signal.SIGTERM else -9)
    assert list(temporary.iterdir()) == (kept if end == signal.SIGKILL else [])


def test_fleets_are_scored_and_reported(tmp_path, capsys):
    fleet, test = f"{tmp_path}/fleet", f"{tmp_path}/test.parquet"
    fit_fleet(tmp_path, 150)
    make_frame(90, seed=4).to_parquet(test)
    assert run(["evaluate", fleet, test, "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)
    truth, predicted = pd.read_parquet(test), load_fleet(fleet).predict_frame(pd.read_parquet(test))
    assert scores["rows"] == 90 and scores["training_rows"] == 0
    assert scores["rmse"] == pytest.approx(((truth["y"] - predicted["y"]) ** 2).mean() ** 0.5)
    assert scores["coverage"] == pytest.approx(truth["y"].between(predicted["y_lower"], predicted["y_upper"]).mean())
    assert scores["rmse"] < scores["base_rate"]["rmse"]
    page = tmp_path / "page.html"
    assert run(["report", fleet, test, "-o", str(page)]) == 0
    largest = truth["kind"].value_counts().index[0]
    assert f"The page is about the group '{largest}'" in capsys.readouterr().err and page.stat().st_size > 10_000
    assert run(["report", fleet, test, "-o", str(page), "--group", "violet"]) == 2
    assert "there is no model of 'violet'" in capsys.readouterr().err

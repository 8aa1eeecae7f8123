import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import vmg
from vmg.__main__ import main
from vmg.cli.app import run
from vmg.estimators import TableModel
from vmg.fit.design import Size, TrainingPlan
from vmg.tables import read_table

pytestmark = pytest.mark.usefixtures("empty_folder")
QUICK = ["--max-iter", "3", "--hidden", "8", "--members", "2"]


def write_houses(folder):
    """A real CSV file: numbers with holes, categories, dates, booleans, a target with holes; and one of classes."""
    rng = np.random.default_rng(0)
    n = 60
    area = rng.uniform(40, 200, size=n)
    frame = pd.DataFrame(
        {
            "listing": [f"L{i:03d}" for i in range(n)],
            "area": np.where(np.arange(n) % 10 == 3, np.nan, area.round(1)),
            "city": np.where(np.arange(n) % 12 == 5, None, rng.choice(["Paris", "Rome"], size=n)),
            "sold": pd.date_range("2020-01-01", periods=n).strftime("%d.%m.%Y"),
            "garden": rng.random(n) < 0.5,
            "income": [f"{int(v):,}" for v in rng.uniform(2e4, 9e4, size=n)],
            "empty": None,
            "price": np.where(np.arange(n) % 20 == 7, np.nan, (1_000 * area + 5_000 * rng.normal(size=n)).round()),
        }
    )
    frame.to_csv(folder / "houses.csv", index=False)
    kinds = frame.drop(columns="price").assign(kind=np.where(area > 120, "large", "small"))
    kinds.to_csv(folder / "kinds.csv", index=False)
    return frame


@pytest.fixture
def houses(tmp_path):
    return write_houses(tmp_path)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A model file that the command wrote, once for all tests."""
    folder = tmp_path_factory.mktemp("fitted")
    write_houses(folder)
    file = folder / "houses.vmg"
    arguments = ["fit", str(folder / "houses.csv"), "--target", "price", "--no-holdout", "--out", str(file), *QUICK]
    assert run(arguments) == 0
    return file


@pytest.fixture
def model(houses, fitted, tmp_path):
    shutil.copy(fitted, tmp_path)
    return "houses.vmg"


def one_line(text):
    assert text.startswith("error: ") and text.count("\n") == 1 and text.endswith("\n")
    return text


# -- the whole way ----------------------------------------------------------------------------------------------------


def test_fit_says_what_it_did_and_writes_the_model(houses, vmg_command):
    code, out, err = vmg_command("fit", "houses.csv", "--target", "price", *QUICK)
    assert (code, err) == (0, "")
    for sentence in (
        "houses.csv: 60 rows, 8 columns",
        "Task: regression, as the target 'price' is a number",
        "3 rows without a target left out.",
        "Columns used: 5 (2 numbers, 1 category, 1 date, 1 boolean).",
        "Column 'listing' dropped: its texts are all different, like identifiers.",
        "Column 'empty' dropped: it has no values.",
        "Missing cells are marked, and predicted for what they may hold: 'area' (6), 'city' (5).",
        "Model written to houses.vmg.",
    ):
        assert sentence in out
    assert isinstance(vmg.load("houses.vmg"), TableModel)


def test_predictions_are_those_of_the_model_to_the_last_bit(model, vmg_command):
    frame = read_table("houses.csv").frame
    fitted = vmg.load(model)
    expected = fitted.predict_frame(frame, 0.8)
    for name in ("out.csv", "out.csv.gz", "out.parquet"):
        code, out, _ = vmg_command("predict", model, "houses.csv", "--out", name, "--coverage", 0.8)
        assert (code, out) == (0, f"60 predictions written to {name}.\n")
        found = read_table(name).frame
        pd.testing.assert_frame_equal(found.fillna({"flags": ""}), expected, check_exact=True, check_dtype=False)
    for out_option in ([], ["--out", "-"], ["--out", "/dev/stdout"]):
        _, out, _ = vmg_command("predict", model, "houses.csv", "--coverage", 0.8, *out_option)
        assert out == expected.to_csv(index=False)


def test_the_same_seed_gives_the_same_file(houses, vmg_command):
    for seed, out in ((1, "a"), (1, "b"), (2, "c")):
        vmg_command("fit", "houses.csv", "-t", "price", *QUICK, "--seed", seed, "--out", f"{out}.vmg")
    means = [vmg.load(f"{name}.vmg").predict_frame(houses)["price"] for name in "abc"]
    assert means[0].equals(means[1]) and not means[0].equals(means[2])


def test_classification(houses, vmg_command):
    code, out, _ = vmg_command("fit", "kinds.csv", "--target", "kind", "--max-iter", 3)
    estimator = vmg.load("kinds.vmg").estimator
    assert estimator.hidden_layer_sizes == estimator.n_members == "auto"  # chosen by the table
    assert code == 0 and "Task: classification, as the target 'kind' is text with 2 different values." in out
    _, out, _ = vmg_command("predict", "kinds.vmg", "kinds.csv", "--json")
    document = json.loads(out)
    assert document["task"] == "classification" and len(document["rows"]) == 60
    row = document["rows"][0]
    assert row["kind"] in ("large", "small") and row["flags"] == []
    assert row["kind_probability_large"] + row["kind_probability_small"] == pytest.approx(1)
    code, out, _ = vmg_command("evaluate", "kinds.vmg", "kinds.csv")
    assert code == 0 and "accuracy" in out and "classification of 'kind' on 60 rows" in out


def test_options_reach_the_estimator(houses, vmg_command):
    code, out, _ = vmg_command(
        *("fit", "houses.csv", "-t", "price", "--out", "m.vmg", "--task", "regression", "--members", 2),
        *("--hidden", "5,4", "--seed", 3, "--conformal", 0.4, "--ignore", "city", "--ignore", "sold"),
        *("--max-iter", 2),
    )
    assert code == 0 and "Task: regression, as asked." in out
    assert "Columns left out as asked: 'city', 'sold'." in out and "23 rows set aside to calibrate intervals." in out
    estimator = vmg.load("m.vmg").estimator
    assert estimator.hidden_layer_sizes == (5, 4)
    assert (estimator.n_members, estimator.random_state, estimator.max_iter) == (2, 3, 2)
    assert len(estimator.conformal_scores_) == 23


def test_rare_classes_can_count_as_much_as_frequent_ones(houses, vmg_command):
    rare = read_table("kinds.csv").frame.assign(kind=lambda rows: np.where(rows.index < 6, "rare", "often"))
    rare.to_csv("rare.csv", index=False)
    assert vmg_command("fit", "rare.csv", "-t", "kind", "--balanced", "--no-holdout", *QUICK)[0] == 0
    estimator = vmg.load("rare.vmg").estimator
    assert estimator.class_weight == "balanced" and estimator.class_weights_.argmax() == 1
    code, _, err = vmg_command("fit", "houses.csv", "-t", "price", "--balanced", "--likelihood", "beta", *QUICK)
    assert code == 2 and "is for classes" in one_line(err)


def test_the_shell_completes_commands_and_options(tmp_path):
    for words, completed in (("vmg fi", "fit"), ("vmg predict --abo", "--above")):
        asked = {"_VMG_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
        command = [sys.executable, "-m", "vmg"]
        done = subprocess.run(command, env=os.environ | asked, capture_output=True, text=True, check=False)
        assert completed in done.stdout.split()


def test_a_coverage_that_was_not_calibrated_is_a_mistake(houses, vmg_command):
    vmg_command("fit", "houses.csv", "-t", "price", "--conformal", 0.4, *QUICK)
    for command in ("predict", "evaluate"):
        code, _, err = vmg_command(command, "houses.vmg", "houses.csv", "--coverage", 0.99)
        assert code == 2 and "conformalize needs at least 99 rows for coverage 0.99; got 23" in one_line(err)


def test_json_is_all_there_is_on_standard_output(houses, vmg_command):
    code, out, _ = vmg_command("fit", "houses.csv", "--target", "price", *QUICK, "--json")
    document = json.loads(out)
    assert code == 0 and document["task"] == "regression" and document["model"] == "houses.vmg"
    assert document["log_posterior"] == pytest.approx(document["fit"] - document["complexity"])
    _, out, _ = vmg_command("evaluate", "houses.vmg", "houses.csv", "--json")
    scores = json.loads(out)
    assert scores["rows"] == 57 and scores["stated_coverage"] == 0.9
    assert {"rmse", "r2", "log_likelihood", "crps", "coverage", "width"} <= scores.keys()


def test_quiet_prints_nothing(houses, vmg_command):
    assert vmg_command("fit", "houses.csv", "-t", "price", *QUICK, "--quiet") == (0, "", "")
    assert vmg_command("predict", "houses.vmg", "houses.csv", "--out", "p.csv", "-q") == (0, "", "")


def test_extra_columns_and_unknown_values_are_remarked_beside_the_data(model, houses, vmg_command):
    houses.assign(city="Oslo", colour="red").to_csv("new.csv", index=False)
    code, out, err = vmg_command("predict", model, "new.csv")
    assert code == 0 and out.startswith("price,price_std,price_lower,price_upper")
    assert "Not used by the model: 'colour'." in err
    assert "Column 'city' has values unknown from the fit: 'Oslo'." in err


def test_a_single_row_can_be_predicted_and_scored(model, houses, vmg_command):
    houses.drop(columns="price").iloc[:1].to_csv("row.csv", index=False)
    code, out, _ = vmg_command("predict", model, "row.csv")
    assert code == 0 and len(out.splitlines()) == 2
    houses.iloc[:1].to_csv("row.csv", index=False)
    _, out, _ = vmg_command("evaluate", model, "row.csv", "--json")
    assert json.loads(out)["r2"] is None  # JSON has no NaN


def test_demo(vmg_command, monkeypatch):
    small = Size((8,), ("relu",), 4, TrainingPlan(max_steps=20, refit_steps=10))
    monkeypatch.setattr("vmg.estimators.table_estimator.choose_size", lambda n_rows, *, classes: small)
    code, out, _ = vmg_command("demo", "--out", "shown")
    assert code == 0 and "RMSE" in out and "Report written to shown/report.html.\n" in out
    assert sorted(os.listdir("shown")) == ["diabetes.vmg", "diabetes_test.csv", "report.html"]
    code, out, _ = vmg_command("predict", "shown/diabetes.vmg", "shown/diabetes_test.csv")
    assert code == 0 and len(out.splitlines()) == 89


# -- mistakes: exit code 2 and one line -------------------------------------------------------------------------------

FILES = {
    "one.csv": b"a,b,y\n1,2,3\n",
    "constant.csv": b"a,b,y\n" + b"".join(b"%d,2,3\n" % i for i in range(9)),
    "no_values.csv": b"a,y\n" + b"".join(b",%d\n" % i for i in range(9)),
    "duplicate.csv": b"a,a,y\n1,2,3\n",
    "prose.csv": b"Dear all,\nthis is, as you know, no table\n",
    "empty.csv": b"",
    "header.csv": b"a,b,y\n",
    "binary.csv": bytes(range(256)) * 4,
    "good.csv": b"a,b,y\n" + b"".join(b"%d,%d,%d\n" % (i % 7, i % 5, i) for i in range(30)),
}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("fit none.csv --target y", "there is no file none.csv"),
        ("fit one.csv --target y", "a fit needs at least 5 rows with a target; got 1"),
        ("fit constant.csv --target y", "the target 'y' is always '3'"),
        ("fit no_values.csv --target y", "no column is left to learn from: 'a' it has no values"),
        ("fit duplicate.csv --target y", "several columns of the same name; rename 'a'"),
        ("fit prose.csv --target y", "prose.csv is not a regular table"),
        ("fit empty.csv --target y", "empty.csv is empty"),
        ("fit header.csv --target y", "header.csv has no rows"),
        ("fit binary.csv --target y", "binary.csv is a binary file"),
        ("fit good.csv --target z", "the table has no column 'z'; it has 'a', 'b', 'y'"),
        ("fit good.csv", "Missing option '--target'"),
        ("fit good.csv --target y --task guess", "Invalid value for '--task'"),
        ("fit good.csv --target y --hidden 5,x", "must be auto, or sizes of layers such as 50 or 50,50; got '5,x'"),
        ("fit good.csv --target y --members 0", "Invalid value for '--members'"),
        ("fit good.csv --target y --conformal 2", "conformal must be a share of the rows"),
        ("fit good.csv --target y --ignore z", "the table has no column 'z'"),
        ("fit good.csv --target yy", "the table has no column 'yy' (did you mean 'y'?); it has 'a', 'b', 'y'"),
        ("fit good.csv --target y --out no/m.vmg", "must be in a folder that exists; there is no no"),
        ("fit good.csv --target y --out .", "cannot be .: it is a folder, not a file"),
        ("predict none.vmg good.csv", "there is no file none.vmg"),
        ("predict good.csv good.csv", "good.csv is not a vmg model"),
        ("predict none.vmg good.csv --coverage 90", "must be between 0 and 1, such as 0.9; got 90"),
        ("predict none.vmg good.csv --out p.xlsx", "must end in .csv, .csv.gz, .parquet, .pq; got p.xlsx"),
        ("evaluate binary.csv good.csv --json", "binary.csv is not a vmg model"),
        ("fit good.csv --target y --colour", "No such option"),
        ("paint", "No such command"),
    ],
)
def test_mistakes_get_one_line_and_code_2(vmg_command, arguments, message):
    for name, contents in FILES.items():
        with open(name, "wb") as file:
            file.write(contents)
    code, _, err = vmg_command(*arguments.split(" "))
    assert code == 2
    assert message in one_line(err)
    assert sorted(os.listdir()) == sorted(FILES)


@pytest.mark.parametrize(
    "arguments",
    [
        "fit houses.csv -t price -o houses.csv",
        "fit houses.csv -t price -o ./sub/../houses.csv",
        "fit houses.csv -t price -o link.csv",
        "fit houses.csv -t price -o hard.csv",
        "predict houses.vmg houses.csv -o houses.csv",
        "predict link.vmg.csv houses.csv -o link.vmg.csv",
        "report houses.vmg houses.csv -o houses.vmg",
        "report houses.vmg houses.csv -o link.csv",
    ],
)
def test_an_output_is_never_what_is_read(model, vmg_command, arguments):
    os.mkdir("sub")
    os.symlink("houses.csv", "link.csv")
    os.symlink("houses.vmg", "link.vmg.csv")
    os.link("houses.csv", "hard.csv")
    before = {name: Path(name).read_bytes() for name in ("houses.csv", "houses.vmg")}
    code, _, err = vmg_command(*arguments.split())
    assert code == 2 and "must not be what is read" in one_line(err)
    assert {name: Path(name).read_bytes() for name in before} == before


def test_devices_fifos_and_links_to_them_are_no_outputs(model, vmg_command):
    os.mkfifo("pipe.csv")
    os.symlink("/dev/null", "null.csv")
    os.symlink("pipe.csv", "chain.csv")
    for name, what in (("pipe.csv", "a FIFO"), ("null.csv", "a device"), ("chain.csv", "a FIFO")):
        for command in ("predict houses.vmg houses.csv", "report houses.vmg houses.csv", "fit houses.csv -t price"):
            code, _, err = vmg_command(*command.split(), "-o", name)
            assert code == 2 and f"cannot be {name}: it is {what}, not a file" in one_line(err)
    assert stat.S_ISFIFO(os.stat("pipe.csv").st_mode) and os.readlink("null.csv") == "/dev/null"


def test_wrong_tables_and_models(model, houses, vmg_command):
    houses[["area", "city"]].to_csv("thin.csv", index=False)
    code, out, err = vmg_command("predict", model, "thin.csv", "--out", "p.csv")
    assert (code, out) == (2, "") and not os.path.exists("p.csv")
    assert "lacks 3 columns that the model was fitted on: 'sold', 'garden', 'income'" in one_line(err)
    houses.drop(columns="price").to_csv("blind.csv", index=False)
    code, _, err = vmg_command("evaluate", model, "blind.csv")
    assert code == 2 and "no column 'price'" in one_line(err)
    vmg.TableRegressor(max_iter=1, hidden_layer_sizes=4, n_members=1).fit(np.eye(5), np.arange(5.0)).save("bare.vmg")
    code, _, err = vmg_command("predict", "bare.vmg", "houses.csv")
    assert code == 2 and "holds a TableRegressor without a table's columns" in one_line(err)
    with open(model, "r+b") as file:
        file.truncate(1000)
    code, _, err = vmg_command("predict", model, "houses.csv")
    assert code == 2 and "truncated" in one_line(err)


# -- the unexpected, and the process itself ---------------------------------------------------------------------------


def test_the_unexpected_gets_one_line_and_code_1(model, vmg_command, monkeypatch):
    def fail(*arguments):
        raise RuntimeError("the moon\nfell down")

    monkeypatch.setattr(TableModel, "evaluate", fail)
    code, _, err = vmg_command("evaluate", model, "houses.csv")
    assert code == 1
    assert one_line(err) == "error: RuntimeError: the moon fell down (add --debug for the traceback)\n"
    code, _, err = vmg_command("evaluate", model, "houses.csv", "--debug")
    assert code == 1 and "Traceback" in err and 'raise RuntimeError("the moon' in err


def test_a_missing_package_gets_a_hint(monkeypatch, capfd, model, vmg_command):
    monkeypatch.setitem(sys.modules, "vmg.report", None)
    code, _, err = vmg_command("report", model, "houses.csv")
    assert code == 2 and "pip install 'vmg[app]'" in one_line(err)
    monkeypatch.setitem(sys.modules, "typer", None)
    monkeypatch.delitem(sys.modules, "vmg.cli.app")
    with pytest.raises(SystemExit) as exit_code:
        main()
    assert exit_code.value.code == 2
    assert "this needs the package typer; install it with: pip install 'vmg[app]'" in capfd.readouterr().err


def test_help_and_version(vmg_command):
    code, out, err = vmg_command("--help")
    assert (code, err) == (0, "")
    for word in ("fit", "predict", "evaluate", "report", "demo", "Examples", "vmg fit houses.csv --target price"):
        assert word in out
    code, out, _ = vmg_command("fit", "--help")
    assert code == 0 and "--conformal" in out and "Network and training" in out
    assert vmg_command("--version") == (0, f"vmg {vmg.__version__}\n", "")
    code, out, err = vmg_command()
    assert (code, err) == (0, "") and "Usage: vmg" in out
    code, out, err = vmg_command("reproduce")
    assert "Usage: vmg reproduce" in out and not err


def test_ctrl_c_leaves_no_file_and_exits_with_130(houses):
    command = [sys.executable, "-c", "from vmg.__main__ import main; main()"]
    arguments = ["fit", "houses.csv", "--target", "price", "--hidden", "400,400,400", "--members", "60"]
    before = sorted(os.listdir())
    process = subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for line in process.stdout:
        if "Missing cells" in line:  # said just before training starts
            break
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert one_line(err.lstrip("\n")) == "error: interrupted\n"  # rich 13 ends the line of its bar first
    assert sorted(os.listdir()) == before

"""What reaches the terminal, a spreadsheet and the shell when names are hostile, disks full and people impatient."""

import json
import os
import subprocess
import sys
import textwrap

import numpy as np
import pandas as pd
import pytest

from vmg.cli.app import run
from vmg.cli.output import visible
from vmg.estimators import TableModel
from vmg.report import write_report
from vmg.tables import TableError, read_table, write_table
from vmg.tables.files import csv_safe

pytestmark = pytest.mark.usefixtures("empty_folder")
QUICK = ["--max-iter", "3", "--hidden", "8"]
EVIL = "a\x1b[2J\x1b]0;owned\x07\x9b31m\u202eb"


@pytest.fixture
def table():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({EVIL: rng.random(40), "x": rng.random(40), "kind": ["=cmd|' /C calc'!A0", "-1"] * 20})
    frame.to_csv("table.csv", index=False)
    return frame


def test_no_escape_code_reaches_the_terminal(table, vmg_command):
    said = []
    for arguments in (
        ["fit", "table.csv", "-t", EVIL, *QUICK],
        ["fit", "table.csv", "-t", EVIL, *QUICK, "--json"],
        ["fit", "table.csv", "-t", f"{EVIL} and more", *QUICK],
        ["fit", "table.csv", "-t", "kind", *QUICK, "-o", "kind.vmg"],
        ["evaluate", "kind.vmg", "table.csv"],
        ["predict", EVIL, "table.csv"],
    ):
        said += vmg_command(*arguments)[1:]
    assert json.loads(said[2])["target"] == EVIL
    assert any("\\u001b[2J" in text for text in said)
    assert not any(character in text for text in said for character in "\x1b\x07\x9b\u202e")


def test_characters_that_nobody_sees_are_written_out():
    """Zero-width spaces, tag characters and the like can say to a program what a reader does not see."""
    assert visible("größe\t[bold]\n") == "größe\t[bold]\n"
    assert visible("\x00\x1b\x08\x7f") == "\\u0000\\u001b\\b\\u007f"
    hidden = "a\u200b\u2060\ufeff\u00ad\U000e0041\U000e0101b"
    assert visible(hidden) == "a\\u200b\\u2060\\ufeff\\u00ad\\udb40\\udc41\\udb40\\udd01b"
    assert json.loads(visible(json.dumps(hidden, ensure_ascii=False))) == hidden
    assert visible("نمی\u200cدانم 👩\u200d👧 ❤\ufe0f") == "نمی\u200cدانم 👩\u200d👧 ❤\ufe0f"


def test_formulas_in_labels_are_no_formulas_in_csv(table, vmg_command):
    assert vmg_command("fit", "table.csv", "-t", "kind", *QUICK)[0] == 0
    for name in ("out.csv", "out.csv.gz"):
        assert vmg_command("predict", "table.vmg", "table.csv", "-o", name)[0] == 0
        found = read_table(name).frame
        assert set(found["kind"]) <= {"'=cmd|' /C calc'!A0", "-1"}
    _, out, _ = vmg_command("predict", "table.vmg", "table.csv")
    assert "\n=cmd" not in out and "\n'=cmd" in out
    vmg_command("predict", "table.vmg", "table.csv", "-o", "out.parquet")
    assert "=cmd|' /C calc'!A0" in set(read_table("out.parquet").frame["kind"])  # nothing runs there


def test_only_texts_that_start_a_formula_are_changed():
    frame = pd.DataFrame({"=a": [-1, 2], "b": ["+SUM(A1)", "-3.5e2"], "c": ["@x", None], "d": ["plain", "a=b"]})
    safe = csv_safe(frame)
    assert list(safe.columns) == ["'=a", "b", "c", "d"]
    assert safe["'=a"].tolist() == [-1, 2] and safe["b"].tolist() == ["'+SUM(A1)", "-3.5e2"]
    assert safe["c"].iloc[0] == "'@x" and safe["c"].isna().tolist() == [False, True]
    assert safe["d"].tolist() == ["plain", "a=b"]
    assert list(frame.columns) == ["=a", "b", "c", "d"]
    starts = pd.DataFrame({"e": ["\n=cmd", "\r=cmd", "\t=cmd", "＝cmd", "a\r=cmd"]})
    assert csv_safe(starts)["e"].tolist() == ["'\n=cmd", "'\n=cmd", "'\t=cmd", "'＝cmd", "a\n=cmd"]


def test_a_full_disk_is_said_by_every_command_that_writes(table, vmg_command, monkeypatch):
    assert vmg_command("fit", "table.csv", "-t", "kind", *QUICK)[0] == 0
    before = sorted(os.listdir())
    real = os.fsync

    def full(descriptor):
        if not os.path.isdir(f"/proc/self/fd/{descriptor}"):
            raise OSError(28, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    for arguments in (
        ["report", "table.vmg", "table.csv", "-o", "page.html"],
        ["predict", "table.vmg", "table.csv", "-o", "out.csv"],
        ["fit", "table.csv", "-t", "kind", *QUICK, "-o", "other.vmg"],
    ):
        code, _, err = vmg_command(*arguments)
        assert code == 2 and "No space left on device" in err and err.count("\n") == 1
    assert sorted(os.listdir()) == before


def test_write_report_raises_no_bare_error(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.random(30), "y": rng.random(30)})
    options = {"hidden_layer_sizes": (4,), "max_iter": 10, "n_members": 2}
    model = TableModel.fit(frame, "y", options=options)
    with pytest.raises(TableError, match="cannot write"):
        write_report(model, frame, tmp_path / "none" / "page.html")
    with pytest.raises(TableError, match="cannot write"):
        write_table(frame, tmp_path / "none" / "t.csv")


COMMAND = [sys.executable, "-c", "from vmg.__main__ import main; main()"]


def test_an_interrupt_in_the_midst_of_an_import(tmp_path):
    """At a moment that is certain: typer stands for whatever takes long."""
    (tmp_path / "typer.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nraise SystemExit(7)\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run([*COMMAND, "--help"], capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stderr) == (130, "error: interrupted\n")


def test_letters_that_the_terminal_has_not_are_written_out():
    rows = "".join(f"{k},{k % 7}\n" for k in range(20))
    with open("größe.csv", "w") as file:
        file.write("a,y\n" + rows)
    command = [*COMMAND, "fit", "größe.csv", "-t", "none"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 2 and done.stderr.startswith("error: the table has no column 'none'")
    assert "gr\\xf6\\xdfe.csv: 20 rows" in done.stdout


@pytest.mark.parametrize(
    ("outputs", "said"),
    [
        ("predict table.vmg table.csv > /dev/full", "error: No space left on device\n"),
        ("predict table.vmg table.csv >&-", "error: standard output is closed; > /dev/null throws it away\n"),
        ("predict table.vmg none.csv 2>&-", ""),
    ],
)
def test_full_and_closed_outputs_are_a_mistake_of_the_caller(table, outputs, said):
    run(["fit", "table.csv", "-t", "x", *QUICK, "--no-holdout", "-q"])
    start = f'{sys.executable} -c "from vmg.__main__ import main; main()"'
    done = subprocess.run(f"{start} {outputs}", shell=True, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr, done.stdout) == (2, said, "")


def test_kernels_can_be_switched_off_in_many_words():
    program = """
        import importlib, os
        from vmg.fused import library
        for value in ("0", "false", "No", " OFF "):
            os.environ["VMG_NATIVE"] = value
            print(importlib.reload(library).available())
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == 4 * "False\n"

"""The project of docs/tables.md, from a messy file to predictions with flags, as it is written there."""

import re
import shutil
from pathlib import Path

import pandas as pd

from vmg.cli.app import run

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"```console\n\$ vmg ([^\n]*)\n(.*?)```", re.DOTALL)


def words(text):
    return " ".join(text.split())


def test_every_command_says_what_the_page_shows(tmp_path, monkeypatch, capfd):
    for file in (ROOT / "examples" / "tables").iterdir():
        shutil.copy(file, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    blocks = BLOCK.findall((ROOT / "docs" / "tables.md").read_text(encoding="utf-8"))
    assert len(blocks) == 6
    for command, shown in blocks:
        capfd.readouterr()
        code = run(command.split())
        out, err = capfd.readouterr()
        said = words(out + err)
        lines = [words(line) for line in shown.splitlines() if line.strip() not in ("", "...")]
        assert code == (2 if any(line.startswith("error: ") for line in lines) else 0), err
        for line in lines:
            pattern = r"[^ ]*".join(re.escape(part) for part in line.split("..."))
            assert re.search(pattern, said), f"vmg {command} did not say {line!r} but {said}"
    assert len(pd.read_csv("predictions.csv")) == 40

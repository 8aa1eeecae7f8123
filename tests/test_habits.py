"""Files that a project keeps for the people who join it say what is true."""

import re
from pathlib import Path

import vmg

ROOT = Path(__file__).parents[1]


def test_the_citation_has_the_version():
    stated = re.search(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE)
    assert stated is not None
    assert stated[1] == vmg.__version__


def test_files_that_the_makefile_names_are_there():
    named = re.findall(r"\btests/[\w/]+\.py", (ROOT / "Makefile").read_text(encoding="utf-8"))
    assert len(named) > 5
    assert not [path for path in named if not (ROOT / path).is_file()]

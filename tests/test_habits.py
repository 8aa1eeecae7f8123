"""Files that a project keeps for the people who join it say what is true."""

import re
from pathlib import Path

import vmg

ROOT = Path(__file__).parents[1]


def test_the_citation_has_the_version():
    stated = re.search(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE)
    assert stated is not None
    assert stated[1] == vmg.__version__


def test_commands_of_make_that_pages_name_are_there():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / ".github").rglob("*.yml")]
    named = {
        (page.name, name)
        for page in pages
        for name in re.findall(r"(?:`|run: |^    )make ([a-z][\w-]*)", page.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert len(named) >= 8
    assert {(page, name) for page, name in named if name not in targets} == set()

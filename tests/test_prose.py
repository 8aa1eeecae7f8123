"""Docstrings that a reader takes in at once."""

import ast
import re
from pathlib import Path

import vmg

SOURCE = Path(vmg.__file__).parents[1]
UNCLEAR_STARTS = ("What ", "Of ", "As ", "From ", "For ", "In ", "On ", "By ", "Where ", "Alone ", "None for ")
OTHER_NAMES = {  # of a thing that has a name on docs/vocabulary.md
    r"log[ -]scores?\b|\blog likelihoods?\b": "log-likelihood",
}
RIDDLES = ("in any company", "gone through step by step", "what is asked for of it")


def strings(tree):
    """Docstrings, and strings that stand below a name, with their lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value, node.lineno


def test_docstrings_start_with_a_verb_or_a_noun():
    found = [
        f"{path.relative_to(SOURCE)}:{line}"
        for path in sorted(SOURCE.rglob("*.py"))
        for text, line in strings(ast.parse(path.read_text(encoding="utf-8")))
        if text.startswith(UNCLEAR_STARTS)
    ]
    assert found == []


def test_there_are_no_riddles():
    found = [
        f"{path.relative_to(SOURCE)}: {riddle}"
        for path in sorted(SOURCE.rglob("*.py"))
        for riddle in RIDDLES
        if riddle in path.read_text(encoding="utf-8")
    ]
    assert found == []


def test_one_name_for_one_thing():
    root = Path(__file__).parents[1]
    files = [root / "README.md", root / "CONTRIBUTING.md", root / "lab" / "README.md", *(root / "docs").rglob("*.md")]
    files += [p for folder in ("src", "benchmarks", "examples", "lab") for p in (root / folder).rglob("*.py")]
    found = [
        f"{path.relative_to(root)}:{number}: {name}"
        for path in [*files, *(root / "src").rglob("*.html")]
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        for other, name in OTHER_NAMES.items()
        if re.search(other, line, re.IGNORECASE)
    ]
    assert found == []


def test_no_file_is_too_long():
    root = Path(__file__).parents[1]
    files = [
        path for folder in ("src", "tests", "benchmarks", "lab", "examples") for path in (root / folder).rglob("*.py")
    ]
    assert [p.name for p in files if len(p.read_text(encoding="utf-8").splitlines()) > 600] == []

"""Tables of what works with vmg, from tests that are marked with it: docs/works_with.md, and a part of docs/pytorch.md.

python tests/works_with.py    # writes both anew
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE, ALL = ROOT / "docs" / "pytorch.md", ROOT / "docs" / "works_with.md"
START, END = "<!-- works with: written by tests/works_with.py -->\n", "<!-- end of works with -->\n"
OF_TABLES = ("tests/interop/test_packages.py", "tests/interop/test_skpro.py", "tests/estimators", "tests/variational")
TEXT = """# Works with

Each line is a test that runs the package itself where it is installed: `python -m pytest tests/interop`.
This page is written from the tests by `python tests/works_with.py`.

## Estimators for tables

{tables}
scikit-learn's `check_estimator` runs on all four estimators: `tests/estimators/test_checks.py`.

## PyTorch models

{models}"""


def marked_tests() -> Iterator[tuple[str, str, str]]:
    """What works, how, and the test that shows it, in the order of files and lines."""
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for part in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(part, ast.FunctionDef):
                for call in part.decorator_list:
                    if isinstance(call, ast.Call) and ast.unparse(call.func) == "pytest.mark.works_with":
                        what, how = (ast.literal_eval(value) for value in call.args)
                        yield what, how, f"{path.relative_to(ROOT).as_posix()}::{part.name}"


def table(*, of_tables: bool) -> str:
    marked = [row for row in marked_tests() if row[2].startswith(OF_TABLES) == of_tables]
    rows = [f"| {what} | {how} | `{test}` |" for what, how, test in marked]
    return "\n".join(["| | how | test |", "|---|---|---|", *rows, ""])


def page_with_table() -> str:
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(START)
    return f"{before}{START}\n{table(of_tables=False)}\n{END}{rest.partition(END)[2]}"


def page_of_all() -> str:
    return TEXT.format(tables=table(of_tables=True), models=table(of_tables=False))


if __name__ == "__main__":
    PAGE.write_text(page_with_table(), encoding="utf-8")
    ALL.write_text(page_of_all(), encoding="utf-8")

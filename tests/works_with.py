"""The table "Works with" of docs/pytorch.md, from tests that are marked with what they show.

python tests/works_with.py    # writes it anew
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "pytorch.md"
START, END = "<!-- works with: written by tests/works_with.py -->\n", "<!-- end of works with -->\n"


def marked_tests() -> Iterator[tuple[str, str, str]]:
    """What works, how, and the test that shows it, in the order of files and lines."""
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for part in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(part, ast.FunctionDef):
                for call in part.decorator_list:
                    if isinstance(call, ast.Call) and ast.unparse(call.func) == "pytest.mark.works_with":
                        what, how = (ast.literal_eval(value) for value in call.args)
                        yield what, how, f"{path.relative_to(ROOT).as_posix()}::{part.name}"


def table() -> str:
    rows = [f"| {what} | {how} | `{test}` |" for what, how, test in marked_tests()]
    return "\n".join(["| | how | test |", "|---|---|---|", *rows, ""])


def page_with_table() -> str:
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(START)
    return f"{before}{START}\n{table()}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page_with_table(), encoding="utf-8")

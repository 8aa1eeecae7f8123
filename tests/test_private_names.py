"""No module reaches into another one's private names."""

import ast
from pathlib import Path

import vmg

SOURCE = Path(vmg.__file__).parents[1]
OWN = {"self", "cls"}  # inherited names are a class's own
CONVENTIONS = {  # names that other libraries gave
    "_parameter_constraints",  # scikit-learn's
    "_make",  # of named tuples
    "_modules",  # of torch.nn.Module
    "_parameters",  # of the same
    "_qkv_same_embed_dim",  # of torch.nn.MultiheadAttention
}


def is_private(name):
    return name.startswith("_") and not name.startswith("__")


def defined(tree):
    """Private names that a module defines: functions, classes, variables and attributes that it sets."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_own(node.value):
            yield node.attr
        elif isinstance(node, ast.arg):
            yield node.arg


def is_own(value):
    return isinstance(value, ast.Name) and value.id in OWN


def used(tree):
    """Private names of others that a module asks for, with the line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            inherited = is_own(node.value) or (
                isinstance(node.value, ast.Call) and getattr(node.value.func, "id", "") == "super"
            )
            if not inherited:
                yield node.attr, node.lineno
        elif isinstance(node, ast.ImportFrom):
            yield from ((alias.name, node.lineno) for alias in node.names if is_private(alias.name))


def peeks(folders):
    """Uses of private names that another file of ``folders`` defines and this one does not."""
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for folder in folders for path in folder.rglob("*.py")}
    names = {path: {name for name in defined(tree) if is_private(name)} for path, tree in trees.items()}
    ours = set().union(*names.values())
    for path, tree in sorted(trees.items()):
        for name, line in used(tree):
            if name in ours - names[path] - CONVENTIONS:
                yield f"{path.name}:{line} {name}"


def test_no_module_reaches_into_another():
    assert list(peeks([SOURCE])) == []


def test_the_check_finds_what_it_should(tmp_path):
    (tmp_path / "a.py").write_text(
        "_limit = 1\nclass A:\n    def _hidden(self): ...\n    def use(self, other): other._hidden()\n"
    )
    (tmp_path / "b.py").write_text(
        "import a\nfrom a import _limit\nclass B(a.A):\n    def use(self, other):\n        self._hidden()\n"
        "        super()._hidden()\n        other._hidden()\n        other._replace()\n        a._limit = 2\n"
    )
    assert list(peeks([tmp_path])) == ["b.py:2 _limit", "b.py:9 _limit", "b.py:7 _hidden"]

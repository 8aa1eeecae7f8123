"""Names and files that the pages speak of are there, and names are public."""

import ast
import re
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "lab/README.md", *sorted((ROOT / "docs").rglob("*.md"))]
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))

PACKAGES = ("vmg", "vmg_paper")
FOLDERS = ("", "src", "src/vmg", "docs", "benchmarks", "lab", "tests")  # that a page may name a file from
FILE = re.compile(r"[\w./-]*\w\.(?:py|md|jsonl|png|toml|txt|yml|cpp)")


def code_blocks(text):
    return re.findall(r"^```(?:python|\{code-cell\} python)\n(?::.*\n)*(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def dotted(node):
    """``a.b.c`` as its parts, or None."""
    if isinstance(node, ast.Name):
        return [node.id]
    before = dotted(node.value) if isinstance(node, ast.Attribute) else None
    return None if before is None else [*before, node.attr]


def names_in_code(code):
    """Dotted names of the packages that a block of code imports or uses; those that it imports under another too."""
    tree, imported = ast.parse(code), {package: package for package in PACKAGES}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] in PACKAGES:
            imported |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            ours = [alias for alias in node.names if alias.name.partition(".")[0] in PACKAGES]
            imported |= {alias.asname: alias.name for alias in ours if alias.asname}
            yield from (alias.name for alias in ours)
    yield from imported.values()
    for node in ast.walk(tree):
        parts = dotted(node) if isinstance(node, ast.Attribute) else None
        if parts and parts[0] in imported:
            yield ".".join([imported[parts[0]], *parts[1:]])


def names_in_prose(text):
    """Dotted names in backticks, such as `vmg.nn.bayesianize(model)`."""
    spans = re.findall(r"`([^`\n]+)`", text)
    return {name for span in spans for name in re.findall(r"(?<![\w./-])(?:vmg|vmg_paper)(?:\.[A-Za-z_]\w*)+", span)}


def missing(name):
    """Which part of a dotted name is not public, or None."""
    first, *rest = name.split(".")
    found = import_module(first)
    for place, part in enumerate(rest, 2):
        path = ".".join(name.split(".")[:place])
        if not isinstance(found, ModuleType):
            if not hasattr(found, part) and part not in getattr(found, "__annotations__", {}):
                return path
            return None  # what an object has is its own business
        public = part in getattr(found, "__all__", ())
        if public:
            found = getattr(found, part)
        elif not part.startswith("_") and hasattr(found, "__path__") and find_spec(path) is not None:
            try:
                found = import_module(path)
            except ModuleNotFoundError as error:
                if str(error.name).partition(".")[0] in PACKAGES:
                    return path
                return None  # it needs a package of an extra
        else:
            return path
    return None


@every_page
def test_names_are_public(page):
    text = page.read_text(encoding="utf-8")
    names = names_in_prose(text).union(*map(names_in_code, code_blocks(text)))
    assert {name: missing(name) for name in names if missing(name)} == {}


def lost_files(text, folder):
    """Files that a page in ``folder`` links to or names in backticks and that are not there."""
    linked = {link for link in re.findall(r"\]\(([^)#\s]+)\)", text) if "://" not in link}
    words = [word for span in re.findall(r"`([^`\n]+)`", text) for word in span.split()]
    named = {word for word in words if "/" in word and FILE.fullmatch(word)}
    return {link for link in linked if not (folder / link).exists()} | {
        path for path in named if not any((ROOT / start / path).exists() for start in FOLDERS)
    }


@every_page
def test_files_are_there(page):
    assert lost_files(page.read_text(encoding="utf-8"), page.parent) == set()


def definitions(node):
    """Names that a module or a class defines, a class's own attributes included."""
    for part in node.body:
        if isinstance(part, ast.FunctionDef | ast.ClassDef):
            yield part.name
        elif isinstance(part, ast.Assign | ast.AnnAssign):
            targets = part.targets if isinstance(part, ast.Assign) else [part.target]
            yield from (name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name))
    for part in ast.walk(node) if isinstance(node, ast.ClassDef) else ():
        if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store) and dotted(part.value) == ["self"]:
            yield part.attr


def lost_definitions(text):
    """Places such as `nn/mlp.py:MLP.forward` that a page names and that are not defined there."""
    for path, name in re.findall(r"`([\w/]+\.py):([\w.]+)`", text):
        source = ROOT / "src" / "vmg" / path
        node = ast.parse(source.read_text(encoding="utf-8")) if source.exists() else ast.Module([], [])
        for part in name.split("."):
            if part not in definitions(node):
                yield f"{path}:{name}"
                break
            node = next((n for n in node.body if getattr(n, "name", "") == part), None)


@every_page
def test_definitions_are_there(page):
    text = page.read_text(encoding="utf-8")
    assert list(lost_definitions(text)) == []
    assert page.stem != "notation" or text.count(".py:") >= 30


def test_the_check_finds_what_it_should():
    assert (
        missing("vmg.nn.MLP") is missing("vmg.estimators.TableRegressor.fit") is missing("vmg_paper.baselines") is None
    )
    assert missing("vmg.nothing.at_all") == "vmg.nothing"
    assert missing("vmg.nn.mlp.itertools") == "vmg.nn.mlp.itertools"  # there, but not of this library
    assert missing("vmg.TableRegressor.fitt") == "vmg.TableRegressor.fitt"
    code = "import vmg.nn as layers\nfrom vmg import elbo\nimport vmg\nlayers.MLP(1)\nvmg.nn.Nothing.x\n"
    assert {"vmg.nn.MLP", "vmg.elbo", "vmg.nn.Nothing.x"} <= set(names_in_code(code))
    text = "[a](README.md), [b](none.md), `nn/mlp.py`, `python benchmarks/none.py --quick`, `nn/none.py`"
    assert lost_files(text, ROOT) == {"none.md", "benchmarks/none.py", "nn/none.py"}
    assert names_in_prose("`vmg.elbo(x)` and `houses.vmg` and `a/vmg.py`") == {"vmg.elbo"}
    text = (
        "`nn/mlp.py:MLP.forward`, `nn/mlp.py:MLP.activation`, `nn/mlp.py:MLP.none`, `nn/none.py:MLP`, `nn/mlp.py:none`"
    )
    assert list(lost_definitions(text)) == ["nn/mlp.py:MLP.none", "nn/none.py:MLP", "nn/mlp.py:none"]

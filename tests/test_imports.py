"""The direction of dependence: a module imports only from modules to its left."""

import ast
import re
from pathlib import Path

import vmg

SOURCE = Path(vmg.__file__).parents[1]
CONTRIBUTING = Path(__file__).parents[1] / "CONTRIBUTING.md"

# Groups from left to right; "vmg" is the package's own __init__. A new module needs a place here.
ORDER = (
    ("files", "processes"),
    ("model_file",),
    ("math",),
    ("covariance", "fused"),
    ("priors",),
    ("nn", "likelihoods"),
    ("objective",),
    ("training", "prediction"),
    ("fit",),
    ("tables",),
    ("estimators",),
    ("variational",),
    ("review",),
    ("vmg",),
    ("scale", "report"),
    ("cli",),
    ("__main__",),
    # the paper's experiments, which may import all of the above
    ("vmg_paper.data", "vmg_paper.layers"),
    ("vmg_paper.baselines",),
    ("vmg_paper.experiments",),
    ("vmg_paper.figures",),
    ("vmg_paper.cli",),
    ("vmg_paper",),
)
ALONE = ("metrics",)  # import nothing of the others; modules from training on may import them
COMMANDS = ("cli",)  # may import vmg_paper, but only inside functions: nothing of it is loaded before a command runs

ONLY_IN = {  # libraries that few modules may import
    "sklearn": ("estimators", "variational", "review", "vmg_paper.baselines", "fit", "cli"),  # fit: it grows trees
    "botorch": ("nn",),
    "matplotlib": ("report", "vmg_paper.figures"),
    "typer": ("cli", "vmg_paper.cli"),
}

PLACE = {name: place for place, group in enumerate(ORDER) for name in group}


def part_of(path, root):
    """The part of the library that a file belongs to: its first folder below the package, or its own name."""
    package, name = path.relative_to(root).parts[:2]
    return part_name(f"{package}.{name.removesuffix('.py').removesuffix('__init__')}".rstrip("."))


def part_name(module):
    """vmg.nn.mlp -> nn, vmg_paper.data.toy -> vmg_paper.data; a package itself keeps its name."""
    package, _, rest = module.partition(".")
    first = rest.partition(".")[0]
    if package == "vmg":
        return first or "vmg"
    return f"{package}.{first}" if first else package


def imports(path, root):
    """Every module that a file imports, in full, and whether it does so at once or inside a function."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    late = {id(node) for function in functions for node in ast.walk(function)}
    for node in ast.walk(tree):
        for module in imported(node, path, root):
            yield module, id(node) not in late


def imported(node, path, root):
    """The modules of one statement: ``import a.b``, ``from a import b`` and relative forms."""
    package = path.relative_to(root).parent.parts
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = package[: len(package) + 1 - node.level] if node.level else []
        base = ".".join([*base, *([node.module] if node.module else [])])
        if (root / base).is_dir():  # from vmg import nn: the module nn; from vmg import elbo: the package itself
            names = {p.name.removesuffix(".py") for p in (root / base).iterdir()}
            yield from (f"{base}.{a.name}" if a.name in names else base for a in node.names)
        else:
            yield base


def allowed(part, target, at_once):
    if target == part:
        return True
    if part in ALONE:
        return False
    if target in ALONE:
        return PLACE[part] >= PLACE["training"]
    if part in COMMANDS and target.startswith("vmg_paper"):
        return not at_once
    return PLACE[target] < PLACE[part]


def violations(root):
    for path in sorted(root.rglob("*.py")):
        part, where = part_of(path, root), path.relative_to(root)
        if part not in PLACE and part not in ALONE:
            yield f"{where}: {part} has no place in the table of tests/test_imports.py"
            continue
        for module, at_once in imports(path, root):
            library = module.partition(".")[0]
            if library in ("vmg", "vmg_paper"):
                target = part_name(module)
                if target not in PLACE and target not in ALONE:
                    yield f"{where} imports {module}, which has no place in the table of tests/test_imports.py"
                elif not allowed(part, target, at_once):
                    yield f"{where} imports {module}: {part} may not depend on {target}"
            elif part not in ONLY_IN.get(library, (part,)):
                yield f"{where} imports {module}: only {', '.join(ONLY_IN[library])} may"


def test_modules_import_from_the_left_only():
    assert list(violations(SOURCE)) == []


def test_contributing_draws_the_same_order():
    text = CONTRIBUTING.read_text(encoding="utf-8").partition("enforces this diagram:\n\n")[2]
    drawing = " ".join(line.strip() for line in text.partition("\n\n")[0].splitlines())
    assert [tuple(group.strip().split(", ")) for group in drawing.split("→")] == list(ORDER)


def test_places_that_contributing_names_are_there():
    named = re.findall(r"`([\w/]+/[\w.]*)`", CONTRIBUTING.read_text(encoding="utf-8"))
    assert len(named) >= 30
    for name in named:
        assert any((root / name).exists() for root in (SOURCE / "vmg", SOURCE, CONTRIBUTING.parent)), name


def test_the_check_finds_what_it_should(tmp_path):
    files = {
        "vmg/__init__.py": "from vmg import nn",
        "vmg/math.py": "import torch",
        "vmg/covariance.py": "def f():\n    from vmg.nn.layer import Layer",
        "vmg/metrics.py": "import numpy\nfrom vmg import math",
        "vmg/nn/__init__.py": "from vmg import math\nfrom . import layer",
        "vmg/nn/layer.py": "from ..math import cholesky\nfrom .. import training\nimport sklearn.base",
        "vmg/training.py": "import vmg.nn\nfrom vmg.objective import elbo\nfrom vmg import __version__",
        "vmg/helpers.py": "import math",
        "vmg/likelihoods.py": "import vmg.helpers\nimport vmg.metrics\nimport vmg.nn",
        "vmg/estimators/base.py": "import sklearn\nfrom vmg import metrics, training\nimport vmg_paper",
        "vmg/cli.py": "import typer\nimport matplotlib.pyplot\nimport vmg\nfrom vmg_paper import data\n"
        "def f():\n    import vmg_paper.data.toy",
        "vmg_paper/__init__.py": "",
        "vmg_paper/data/toy.py": "import vmg.metrics\nfrom vmg.cli import say\nimport vmg_paper.experiments",
        "vmg_paper/data/run.py": "from vmg_paper.data import toy\nimport vmg_paper.extra",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(text)
    assert list(violations(tmp_path)) == [
        "vmg/cli.py imports matplotlib.pyplot: only report, vmg_paper.figures may",
        "vmg/cli.py imports vmg_paper.data: cli may not depend on vmg_paper.data",
        "vmg/covariance.py imports vmg.nn.layer: covariance may not depend on nn",
        "vmg/estimators/base.py imports vmg_paper: estimators may not depend on vmg_paper",
        "vmg/helpers.py: helpers has no place in the table of tests/test_imports.py",
        "vmg/likelihoods.py imports vmg.helpers, which has no place in the table of tests/test_imports.py",
        "vmg/likelihoods.py imports vmg.metrics: likelihoods may not depend on metrics",
        "vmg/likelihoods.py imports vmg.nn: likelihoods may not depend on nn",
        "vmg/metrics.py imports vmg.math: metrics may not depend on math",
        "vmg/nn/layer.py imports vmg.training: nn may not depend on training",
        f"vmg/nn/layer.py imports sklearn.base: only {', '.join(ONLY_IN['sklearn'])} may",
        "vmg/training.py imports vmg: training may not depend on vmg",
        "vmg_paper/data/run.py imports vmg_paper.extra, which has no place in the table of tests/test_imports.py",
        "vmg_paper/data/toy.py imports vmg_paper.experiments: vmg_paper.data may not depend on vmg_paper.experiments",
    ]


def test_processes_talk_in_one_file():
    """Collectives, and who is there, are asked for in ``vmg/processes.py``; ``nn/sharding.py`` knows FSDP's types."""
    asks = re.compile(r"\bdistributed\.(?!fsdp|tensor\b)\w+|^from torch import .*\bdistributed\b", re.MULTILINE)
    files = {str(p.relative_to(SOURCE)) for p in SOURCE.rglob("*.py") if asks.search(p.read_text(encoding="utf-8"))}
    assert files == {"vmg/processes.py"}

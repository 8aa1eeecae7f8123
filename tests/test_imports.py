"""The direction of dependence: a module imports only from modules to its left."""

import ast
from pathlib import Path

import vmg

SOURCE = Path(vmg.__file__).parent

# Groups from left to right; "vmg" is the package's own __init__. A new module needs a place here.
ORDER = (
    ("tracing", "flat", "minibatches", "persistence", "settings"),
    ("linalg", "averaging"),
    ("checkpoint",),
    ("kernels",),
    ("covariance",),
    ("distributions", "functional"),
    ("conditional", "moments"),
    ("operators",),
    ("priors",),
    ("nn", "likelihoods"),
    ("objective",),
    ("stepping", "propagation", "draws"),
    ("training", "prediction"),
    ("estimators",),
    ("baselines", "tables"),
    ("vmg",),
    ("experiments", "report"),
    ("cli", "__main__"),
)
ALONE = ("data", "metrics")  # import nothing of the others; modules from training on may import them

ONLY_IN = {  # libraries that few modules may import
    "sklearn": ("estimators", "data"),
    "matplotlib": ("report",),
    "typer": ("cli",),
}

PLACE = {name: place for place, group in enumerate(ORDER) for name in group}


def part_of(path, root):
    """The part of the library that a file belongs to: its first folder, or its own name."""
    name = path.relative_to(root).parts[0].removesuffix(".py")
    return "vmg" if name == "__init__" else name


def imports(path, root):
    """Every module that a file imports, in full: ``import a.b``, ``from a import b`` and relative forms."""
    package = ["vmg", *path.relative_to(root).parent.parts]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else []
            base = ".".join([*base, *([node.module] if node.module else [])])
            if base == "vmg":  # from vmg import nn: the module nn; from vmg import elbo: the package itself
                parts = {part_of(p, root) for p in root.iterdir()}
                yield from (f"vmg.{a.name}" if a.name in parts else "vmg" for a in node.names)
            else:
                yield base


def allowed(part, target):
    if target == part:
        return True
    if part in ALONE:
        return False
    if target in ALONE:
        return PLACE[part] >= PLACE["training"]
    return PLACE[target] < PLACE[part]


def violations(root):
    for path in sorted(root.rglob("*.py")):
        part, where = part_of(path, root), path.relative_to(root)
        if part not in PLACE and part not in ALONE:
            yield f"{where}: {part} has no place in the table of tests/test_imports.py"
            continue
        for module in imports(path, root):
            library, _, rest = module.partition(".")
            if library == "vmg":
                target = rest.partition(".")[0] or "vmg"
                if target not in PLACE and target not in ALONE:
                    yield f"{where} imports {module}, which has no place in the table of tests/test_imports.py"
                elif not allowed(part, target):
                    yield f"{where} imports {module}: {part} may not depend on {target}"
            elif part not in ONLY_IN.get(library, (part,)):
                yield f"{where} imports {module}: only {', '.join(ONLY_IN[library])} may"


def test_modules_import_from_the_left_only():
    assert list(violations(SOURCE)) == []


def test_the_check_finds_what_it_should(tmp_path):
    files = {
        "__init__.py": "from vmg import nn",
        "linalg.py": "import torch",
        "covariance.py": "def f():\n    from vmg.nn.layer import Layer",
        "metrics.py": "import numpy\nfrom vmg import linalg",
        "nn/__init__.py": "from vmg import linalg\nfrom . import layer",
        "nn/layer.py": "from ..linalg import cholesky\nfrom .. import training\nimport sklearn.base",
        "training.py": "import vmg.nn\nfrom vmg.objective import elbo\nfrom vmg import __version__",
        "helpers.py": "import math",
        "likelihoods.py": "import vmg.helpers\nimport vmg.metrics\nimport vmg.nn",
        "estimators/base.py": "import sklearn\nfrom vmg import metrics, training",
        "cli.py": "import typer\nimport matplotlib.pyplot\nimport vmg",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert list(violations(tmp_path)) == [
        "cli.py imports matplotlib.pyplot: only report may",
        "covariance.py imports vmg.nn.layer: covariance may not depend on nn",
        "helpers.py: helpers has no place in the table of tests/test_imports.py",
        "likelihoods.py imports vmg.helpers, which has no place in the table of tests/test_imports.py",
        "likelihoods.py imports vmg.metrics: likelihoods may not depend on metrics",
        "likelihoods.py imports vmg.nn: likelihoods may not depend on nn",
        "metrics.py imports vmg.linalg: metrics may not depend on linalg",
        "nn/layer.py imports vmg.training: nn may not depend on training",
        "nn/layer.py imports sklearn.base: only estimators, data may",
        "training.py imports vmg: training may not depend on vmg",
    ]

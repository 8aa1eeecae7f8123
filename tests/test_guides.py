"""Every block of the README, the guides and the API page runs, in order, as a reader would type them."""

import doctest
import importlib
import re
import warnings
from pathlib import Path
from types import ModuleType

import pytest
import torch

from works_with import ALL, PAGE, marked_tests, page_of_all, page_with_table

ROOT = Path(__file__).parents[1]
GUIDES = sorted((ROOT / "docs").glob("pytorch*.md"))


@pytest.mark.parametrize(
    "path", [ROOT / "README.md", *GUIDES, ROOT / "docs" / "targets.md"], ids=lambda path: path.stem
)
def test_every_block_runs(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) >= {"README": 2, "targets": 1}.get(path.stem, 5)
    names: dict[str, object] = {}
    with warnings.catch_warnings():
        if path in GUIDES:
            warnings.filterwarnings("ignore", module="torch.*")  # the exporter's own
        for number, block in enumerate(blocks):
            exec(compile(block, f"{path.name}, block {number}", "exec"), names)
    if path.stem == "targets":
        assert names["model"].likelihood_ in ("poisson", "negative-binomial")
    if path in GUIDES:
        summary = names["vmg"].nn.conversion(names["model"])
        shown = "\n".join(f"    {line}" for line in str(summary).split("\n"))
        assert shown in path.read_text(encoding="utf-8"), f"the guide should show\n{summary}"
        torch.compiler.reset()


def test_examples_of_the_api_page_run_and_show_every_public_name():
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    code = "".join(re.findall(r"^```\{doctest\} api\n(.*?)^```", page, re.MULTILINE | re.DOTALL))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = doctest.DocTestRunner().run(doctest.DocTestParser().get_doctest(code, {}, "api.md", None, 0))
    assert found.attempted > 100 and found.failed == 0
    for module in map(importlib.import_module, ("vmg", "vmg.nn", "vmg.scale", "vmg.covariance", "vmg.metrics")):
        public = {name: getattr(module, name) for name in module.__all__}
        listed = page if f"automodule:: {module.__name__}\n" not in page else code
        for name in [name for name, value in public.items() if not isinstance(value, ModuleType)]:
            assert f"{module.__name__}.{name}" in listed or listed is code, f"the API page lacks {name}"
            assert re.search(rf"\b{name}\b", code) or ">>>" in public[name].__doc__, f"{name} has no example"


def test_the_table_of_what_works_is_that_of_the_tests():
    assert PAGE.read_text(encoding="utf-8") == page_with_table(), "run: python tests/works_with.py"
    assert ALL.read_text(encoding="utf-8") == page_of_all(), "run: python tests/works_with.py"
    asked = {"state_dict", "deepcopy", "pickle", "compile", "export", "ONNX", "func", "vmap", "autocast", "GradScaler"}
    asked |= {"checkpointing", "DistributedDataParallel", "FSDP2", "Lightning", "skorch", "accelerate", "HF Trainer"}
    shown = " ".join(what for what, _, _ in marked_tests())
    assert not {name for name in asked if name not in shown}

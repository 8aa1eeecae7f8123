"""Every block of the guides runs, in order, as a reader would type them."""

import re
import warnings
from pathlib import Path

import pytest
import torch

from works_with import PAGE, marked_tests, page_with_table

GUIDES = sorted((Path(__file__).parents[1] / "docs").glob("pytorch*.md"))


@pytest.mark.parametrize("path", GUIDES, ids=lambda path: path.stem)
def test_every_block_runs(path):
    blocks = re.findall(r"^```python\n(.*?)^```", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 5
    names: dict[str, object] = {}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="torch.*")  # the exporter's own
        for number, block in enumerate(blocks):
            exec(compile(block, f"{path.name}, block {number}", "exec"), names)
    summary = names["vmg"].nn.conversion(names["model"])
    shown = "\n".join(f"    {line}" for line in str(summary).split("\n"))
    assert shown in path.read_text(encoding="utf-8"), f"the guide should show\n{summary}"
    torch.compiler.reset()


def test_the_table_of_what_works_is_that_of_the_tests():
    assert PAGE.read_text(encoding="utf-8") == page_with_table(), "run: python tests/works_with.py"
    asked = {"state_dict", "deepcopy", "pickle", "compile", "export", "ONNX", "func", "vmap", "autocast", "GradScaler"}
    asked |= {"checkpointing", "DistributedDataParallel", "FSDP2", "Lightning", "skorch", "accelerate", "HF Trainer"}
    shown = " ".join(what for what, _, _ in marked_tests())
    assert not {name for name in asked if name not in shown}

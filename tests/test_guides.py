"""Every block of the guides runs, in order, as a reader would type them, and no page says what is untrue."""

import re
import warnings
from pathlib import Path

import pytest
import torch

import claims
from works_with import PAGE, marked_tests, page_with_table

GUIDES = sorted((Path(__file__).parents[1] / "docs").glob("pytorch*.md"))
README = claims.ROOT / "README.md"


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


# -- claims -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", claims.pages(), ids=lambda page: page.stem)
def test_a_page_says_nothing_untrue(page):
    assert list(claims.untruths(page, page.read_text(encoding="utf-8"))) == []


def test_tables_of_pages_are_those_of_the_results():
    assert list(claims.wrong_tables(lambda page: page.read_text(encoding="utf-8"))) == []


def test_claims_stand_in_their_pages():
    said = {page: " ".join((claims.ROOT / page).read_text(encoding="utf-8").split()) for page in claims.claimed_pages()}
    assert [words for page, words in claims.sentences() if words not in said[page]] == []


@pytest.mark.parametrize(
    ("planted", "complaint"),
    [
        ("See [the guide](docs/magic.md).", "the link docs/magic.md leads nowhere"),
        ("It is in `src/vmg/magic.py`.", "there is no file src/vmg/magic.py"),
        ("`tests/test_guides.py::test_magic` shows it.", "tests/test_guides.py has no test test_magic"),
        ("    vmg fit houses.csv --target price --magic 3", "No such option"),
        ("    vmg fit houses.csv", "target"),
        ("Run `vmg magic houses.csv`.", "no command magic"),
        ("    vmg reproduce table3", "No such command 'table3'"),
        ("    python benchmarks/step.py --magic", "no option --magic"),
        ("Then `make magic`.", "there is no target magic"),
        ("    pip install 'vmg[magic]'", "there is no extra magic"),
        ("Call `vmg.magic(X)`.", "there is no vmg.magic"),
        ("`TableMagic` does it.", "there is no vmg.TableMagic"),
        ("`predict_interval(X, magic=0.9)`", "predict_interval has no parameter magic"),
        ("```python\nfrom vmg.nn import magic\n```", "there is no vmg.nn.magic"),
        ("It is right in 99.87 % of cases.", "99.87 is in no table of the page"),
    ],
)
def test_a_planted_untruth_is_found(planted, complaint):
    (found,) = claims.untruths(README, f"{README.read_text(encoding='utf-8')}\n{planted}\n")
    assert complaint in found


@pytest.mark.parametrize(
    "name", ["README.md", "docs/table1.md", "docs/table2.md", "docs/ignorance.md", "docs/targets.md"]
)
def test_a_planted_figure_is_found(name):
    def read(page):
        text = page.read_text(encoding="utf-8")
        return re.sub(r"^(\| .* )0\.(\d+ \|)", r"\g<1>9.\2", text, flags=re.M) if page.match(name) else text

    (found, *_) = claims.wrong_tables(read)
    assert name in found

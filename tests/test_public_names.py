"""Pages speak of names, files and commands that are there, and of figures that the results have."""

import re

import pytest

import claims

README = claims.ROOT / "README.md"


@pytest.mark.parametrize("page", claims.pages(), ids=lambda page: page.stem)
def test_a_page_says_nothing_untrue(page):
    assert list(claims.untruths(page, page.read_text(encoding="utf-8"))) == []


def test_tables_of_pages_are_those_of_the_results():
    assert list(claims.wrong_tables(lambda page: page.read_text(encoding="utf-8"))) == []


def test_claims_stand_in_their_pages():
    def said(page):
        return " ".join((claims.ROOT / page).read_text(encoding="utf-8").split())

    assert [words for page, words in claims.sentences() if words not in said(page)] == []


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
        ("Call `vmg.magic(X)`.", "there is no public vmg.magic"),
        ("`TableMagic` does it.", "there is no public vmg.TableMagic"),
        ("See `vmg.nn.mlp.itertools`.", "there is no public vmg.nn.mlp.itertools"),  # there, but not of this library
        ("It is `nn/mlp.py:MLP.none`.", "there is no nn/mlp.py:MLP.none"),
        ("`predict_interval(X, magic=0.9)`", "predict_interval has no parameter magic"),
        ("```python\nfrom vmg.nn import magic\n```", "there is no public vmg.nn.magic"),
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

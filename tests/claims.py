"""Untrue claims of the pages: files, links, commands, options, names and figures that the source and the results lack.

python tests/claims.py    # prints each with its page; ``make test`` runs the same
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from functools import cache
from io import StringIO
from pathlib import Path
from types import ModuleType
from typing import Any

import typer

from vmg.cli.app import app
from vmg.files import read_lines
from vmg_paper.cli import reproduce
from vmg_paper.experiments import table1, table2

ROOT = Path(__file__).parents[1]
PACKAGES = ("vmg", "vmg_paper")
sys.path += [str(ROOT / "benchmarks"), str(ROOT / "lab")]
bounds, kept_back, readme, study, targets, ignorance_report = map(
    importlib.import_module, ("bounds", "kept_back", "readme", "study", "targets", "ignorance_report")
)
UNCOUNTED = ("lab/README.md", "RELEASING.md", "CONTRIBUTING.md", "SECURITY.md")  # findings of one day; no results
SHOWN_FROM = (ROOT, ROOT / "src", ROOT / "src" / "vmg", ROOT / "src" / "vmg_paper")  # folders that file names start in
FOLDERS = "src|tests|docs|examples|benchmarks|lab|results|vmg_paper"
FENCED = re.compile(r"^(`{3,}|:{3,})(?:\{[\w-]+\} ?)?(\w*)[^\n]*\n(.*?)^\1$", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?:^(?: {4}|\t)\S.*\n?)+", re.MULTILINE)
SPAN = re.compile(r"(?<!`)`([^`\n]+(?:\n[^`\n]+)?)`(?!`)")
WRITTEN = re.compile(r"<!-- ([^>]*?) -->.*?<!-- end of [^>]* -->", re.DOTALL)
NUMBER = re.compile(r"(?<![\w.,/^×-])[-−+±]?\d+(?:,\d{3})*(?:\.\d+)?(?![\w×^]|[./-]\d)")


def pages() -> list[Path]:
    """Every page that is read by people."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("*/*.md"), ROOT / "docs/_extra/llms.txt"]
    return sorted({page for page in pages if page.name not in ("CHANGELOG.md", "CODE_OF_CONDUCT.md")})


def untruths(page: Path, text: str) -> Iterator[str]:
    """Every untrue claim of a page."""
    for check in (missing_files, wrong_commands, wrong_names, unsupported_numbers):
        yield from (f"{page.relative_to(ROOT)}: {found}" for found in check(page, text))


# -- files ------------------------------------------------------------------------------------------------------------


def missing_files(page: Path, text: str) -> Iterator[str]:
    """Links and names of files that lead nowhere."""
    prose = FENCED.sub("", text)
    for target in re.findall(r"\]\(([^)\s#]+)[^)\s]*\)", prose):
        built = page.parent.parent / Path(target).with_suffix(".md")  # llms.txt stands beside the pages of the site
        if not re.match(r"\w+:", target) and not (page.parent / target).exists() and not built.exists():
            yield f"the link {target} leads nowhere"
    for span in SPAN.findall(prose):
        name, _, test = span.partition("::")
        of_project = re.fullmatch(rf"(?:{FOLDERS})/[\w./*-]+", name) or re.fullmatch(r"[\w/*-]+\.(?:py|md)", name)
        if not of_project or name.startswith("lab/results"):
            continue
        found = [path for folder in (page.parent, *SHOWN_FROM) for path in folder.glob(name)]
        if not found and "/" not in name:
            found = list((ROOT / "src").rglob(name)) + list((ROOT / "tests").rglob(name))
        if not found:
            yield f"there is no file {name}"
        elif test and f"def {test}(" not in found[0].read_text(encoding="utf-8"):
            yield f"{name} has no test {test}"


# -- commands ---------------------------------------------------------------------------------------------------------


def commands(text: str) -> Iterator[tuple[str, bool]]:
    """Commands of a page, and whether they stand in a block and so are whole."""
    blocks = [block for _, language, block in FENCED.findall(text) if language in ("", "bash", "console", "sh")]
    plain = FENCED.sub("", text)
    for block in [*blocks, *INDENTED.findall(plain)]:
        for line in block.replace("\\\n", " ").splitlines():
            for part in re.split(r" [|] | && ", re.sub(r"\s+# .*", "", line.strip().removeprefix("$ "))):
                yield part.strip(), True
    for span in SPAN.findall(INDENTED.sub("", plain)):
        yield " ".join(span.split()), False


def wrong_commands(page: Path, text: str) -> Iterator[str]:
    """Commands of vmg, make, pip and scripts that do not exist or lack an option."""
    for command, whole in commands(text):
        try:
            program, *words = shlex.split(command)
        except ValueError:
            continue
        while program and re.fullmatch(r"[A-Z_]+=.*", program) and words:  # a variable of the environment
            program, *words = words
        words = [word for word in words if word not in ("...", "…")]
        if program == "vmg" and words and not re.search(r"[<>=(]", command):
            problem = problem_of_vmg(words, whole=whole)
        elif program.startswith("python") and words and words[0].endswith(".py"):
            problem = problem_of_script(words)
        elif program == "make" and words:
            targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
            problem = "" if words[0] in targets else f"there is no target {words[0]}"
        elif program == "pip":
            extras = ",".join(re.findall(r"\[([\w,]+)\]", command)).split(",")
            known = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
            problem = ", ".join(f"there is no extra {name}" for name in extras if name and f"\n{name} = [" not in known)
        else:
            continue
        if problem:
            yield f"the command {command!r} fails: {problem}"


@cache
def parsers() -> dict[str, Any]:
    """Commands of vmg, and groups of them, that parse their words and then do nothing."""
    group: Any = typer.main.get_command(app)
    group.commands["reproduce"] = typer.main.get_command(reproduce)
    for command in (*group.commands.values(), *group.commands["reproduce"].commands.values()):
        command.callback = lambda **options: None
    return group.commands


def problem_of_vmg(words: list[str], *, whole: bool) -> str:
    """Why the command line refuses these words; nothing is run and no file is looked for."""
    name, *rest = words
    if name.startswith("-"):
        return "" if name in ("--help", "--version") else f"no option {name}"
    if name not in parsers():
        return f"no command {name}"
    if not whole and not rest:
        return ""
    try:
        with redirect_stdout(StringIO()):
            parsers()[name].main(rest, prog_name=f"vmg {name}", standalone_mode=False)
    except Exception as error:  # of click or of typer's own copy of it
        message = str(getattr(error, "message", "")) or str(error) or type(error).__name__
        return "" if not whole and "issing" in f"{type(error).__name__} {message}" else message
    return ""


def problem_of_script(words: list[str]) -> str:
    path = ROOT / words[0]
    if not path.is_file():
        return "there is no such file"
    known = path.read_text(encoding="utf-8") + (ROOT / "benchmarks" / "measuring.py").read_text(encoding="utf-8")
    unknown = [w for w in words[1:] if w.startswith("--") and f'"{w.partition("=")[0]}"' not in known]
    return f"no option {unknown[0]}" if unknown else ""


# -- names ------------------------------------------------------------------------------------------------------------


def wrong_names(page: Path, text: str) -> Iterator[str]:
    """Names of the library that are not public, parameters that nothing has, places that are not in their file."""
    code = [
        re.sub(r"^:.*\n", "", block, flags=re.M) for _, language, block in FENCED.findall(text) if language == "python"
    ]
    spans = [" ".join(span.split()) for span in SPAN.findall(FENCED.sub("", text))]
    names = {name for block in code for name in names_in_code(ast.parse(block))}
    for span in spans:
        names |= set(re.findall(r"(?<![\w./-])(?:vmg|vmg_paper)(?:\.[A-Za-z_]\w*)+", span))
        names |= {f"vmg.{name}" for name in re.findall(r"^(?:VMG|Table)[A-Z]\w+$", span)}
    yield from (f"there is no public {path}" for path in sorted({missing(name) for name in names} - {""}))
    yield from (f"there is no {place}" for place in lost_definitions(text))
    for piece in [*code, *spans]:
        try:
            yield from unknown_options(ast.parse(piece.replace("=...", "=None")))
        except SyntaxError:
            continue


def names_in_code(tree: ast.AST) -> Iterator[str]:
    """Dotted names of the packages that a block of code imports or uses, those that it imports under another too."""
    imported = {package: package for package in PACKAGES}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in PACKAGES:
            imported |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            ours = [alias for alias in node.names if alias.name.partition(".")[0] in PACKAGES]
            imported |= {alias.asname: alias.name for alias in ours if alias.asname}
            yield from (alias.name for alias in ours)
    yield from imported.values()
    for node in ast.walk(tree):
        first, _, rest = (ast.unparse(node) if isinstance(node, ast.Attribute) else "").partition(".")
        if first in imported and re.fullmatch(r"[\w.]+", rest):
            yield f"{imported[first]}.{rest}"


def missing(name: str) -> str:
    """The part of a dotted name that is not public; empty if all is."""
    first, *rest = name.split(".")
    found = importlib.import_module(first)
    for place, part in enumerate(rest, 2):
        path = ".".join(name.split(".")[:place])
        if not isinstance(found, ModuleType):  # attributes of an object are its own business
            return "" if hasattr(found, part) or part in getattr(found, "__annotations__", {}) else path
        if part in getattr(found, "__all__", ()):
            found = getattr(found, part)
        elif not part.startswith("_") and hasattr(found, "__path__") and importlib.util.find_spec(path) is not None:
            try:
                found = importlib.import_module(path)
            except ModuleNotFoundError as error:  # of a package of an extra
                return path if str(error.name).partition(".")[0] in PACKAGES else ""
        else:
            return path
    return ""


def lost_definitions(text: str) -> Iterator[str]:
    """Places such as `nn/mlp.py:MLP.forward` that a page names and that are not defined there."""
    for path, name in re.findall(r"`([\w/]+\.py):([\w.]+)`", text):
        file = ROOT / "src" / "vmg" / path
        source = file.read_text(encoding="utf-8") if file.exists() else ""
        if not all(re.search(rf"\b(?:def|class) {part}\b|\b{part}\b[^\n=]* = ", source) for part in name.split(".")):
            yield f"{path}:{name}"


@cache
def owners() -> list[Any]:
    """Where a function that is called without its module is looked for."""
    parts = ("", ".nn", ".scale", ".covariance", ".metrics", ".prediction", ".estimators")
    modules = [importlib.import_module(f"vmg{part}") for part in parts]
    public = [getattr(module, name) for module in modules for name in module.__all__]  # whatever is loaded already
    return [*modules, *(value for value in public if isinstance(value, type))]


def unknown_options(tree: ast.AST) -> Iterator[str]:
    """Keywords of calls that no function of that name takes."""
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call) or ast.unparse(call.func).startswith(("np.", "pd.", "torch.", "joblib.")):
            continue
        name = ast.unparse(call.func).rpartition(".")[2]
        functions = [f for f in (getattr(owner, name, None) for owner in owners()) if callable(f)]
        for keyword in call.keywords if functions else ():
            if keyword.arg and not any(takes(f, keyword.arg) for f in functions):
                yield f"{name} has no parameter {keyword.arg}"


def takes(function: Callable[..., Any], name: str) -> bool:
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return True
    return name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


# -- figures ----------------------------------------------------------------------------------------------------------


def stated_numbers() -> dict[str, list[float]]:
    """Numbers of prose that no table of their page has, by page, with where they come from."""
    lines = (ROOT / "tests" / "stated_numbers.txt").read_text(encoding="utf-8").splitlines()
    stated: dict[str, list[float]] = {}
    for line in lines:
        if line and not line.startswith("#"):
            page, numbers, _ = line.split(" | ")
            stated.setdefault(page, []).extend(float(number) for number in numbers.split())
    return stated


def unsupported_numbers(page: Path, text: str) -> Iterator[str]:
    """Figures in the prose that stand in no table, block or command of the page and are not listed as stated."""
    name = page.relative_to(ROOT).as_posix()
    if name in UNCOUNTED:
        return
    written = "\n".join(match[0] for match in WRITTEN.finditer(text))  # compared with the results elsewhere
    text = WRITTEN.sub("", text)
    shown = "\n".join([*(block for _, _, block in FENCED.findall(text)), *re.findall(r"^\|.*", text, re.MULTILINE)])
    shown += "\n".join(INDENTED.findall(text)) + "\n".join(SPAN.findall(text)) + written
    shown += "\n".join(words for where, words in sentences() if where == name)
    known = [value for value, _ in figures(shown)] + stated_numbers().get(name, [])
    prose = SPAN.sub("", re.sub(r"^[|#].*", "", INDENTED.sub("", FENCED.sub("", text)), flags=re.MULTILINE))
    prose = re.sub(r"\$[^$]*\$|\]\([^)]*\)|<!--.*?-->|\A---.*?^---$", "", prose, flags=re.MULTILINE | re.DOTALL)
    for value, digits in figures(prose):
        is_year = not digits and 1900 <= value < 2100
        if not is_year and not any(round(scale * k, digits) == value for k in known for scale in (1, 100)):
            yield f"{value:.{digits}f} is in no table of the page, nor in tests/stated_numbers.txt"


def figures(text: str) -> Iterator[tuple[float, int]]:
    """Numbers of a text and how many decimals they have."""
    for number in NUMBER.findall(text):
        plain = number.replace("−", "-").lstrip("+±").replace(",", "")
        yield float(plain), len(plain.partition(".")[2])


def wrong_tables(read: Callable[[Path], str]) -> Iterator[str]:
    """Tables of pages that their result files do not give."""
    docs, results, lab = ROOT / "docs", ROOT / "results", ROOT / "lab" / "results"
    kept = read_lines(results / "ignorance.jsonl")
    written = {docs / "targets.md": [targets.show(read_lines(results / "targets.jsonl"))]}
    written[docs / "ignorance.md"] = [
        ignorance_report.toy_table([r for r in kept if r.get("rows") in (None, 600)]),
        *ignorance_report.table_tables([r for r in kept if r.get("rows") in (None, 600)]).values(),
        kept_back.show(results / "kept_back.jsonl"),
    ]
    written[docs / "bounds.md"] = [bounds.tables(read_lines(lab / "bounds.jsonl"))]
    written |= {page: [text] for page, text in readme.pages().items()} | {study.PAGE: list(study.show().values())}
    for page, texts in written.items():
        for text in texts:
            missing = next((line for line in text.strip().splitlines() if line not in read(page)), "")
            if missing or text.strip() not in read(page):
                yield f"{page.relative_to(ROOT)}: its results say {missing or 'the same lines in another order'}"
    for experiment, page in ((table1, docs / "table1.md"), (table2, docs / "table2.md")):
        made = experiment.render(experiment.summarise(read_lines(results / f"{experiment.__name__[-6:]}.jsonl")))
        head = f"| {' | '.join(experiment.HEADER)} |"
        rows = re.findall(rf"^{re.escape(head)}\n[|: -]+\n((?:\|.*\n)+)", read(page), re.MULTILINE)
        for line in "".join(rows).splitlines():
            if line not in made:
                yield f"{page.relative_to(ROOT)}: its results do not say {line}"


@cache
def sentences() -> list[tuple[str, str]]:
    """Pages and claims that stand in them word by word; the others are in tables."""
    return [
        (c.page, c.words) for c in readme.claims_of_speed() if not c.page.startswith(("benchmarks", "docs/scaling"))
    ]


def main() -> int:
    """Print all."""
    found = [untrue for page in pages() for untrue in untruths(page, page.read_text(encoding="utf-8"))]
    found += wrong_tables(lambda page: page.read_text(encoding="utf-8"))
    print("\n".join(found))
    return min(len(found), 1)


if __name__ == "__main__":
    sys.exit(main())

"""``vmg reproduce figure1`` and ``figure2`` from the command line, with tiny settings."""

import json

import pytest
from tiny_figures import tiny_run

from quick import command_runner
from vmg_paper.cli.reproduce import reproduce
from vmg_paper.experiments import figure1, figure2


@pytest.fixture
def seeds():
    """Those that a command has asked for."""
    return []


@pytest.fixture(params=[figure1, figure2], ids=["figure1", "figure2"])
def command(request, monkeypatch, tmp_path, seeds):
    figure = request.param
    result, told = tiny_run(figure)

    def run(*, seed, tell):
        seeds.append(seed)
        for name in told:
            tell(name)
        return result

    monkeypatch.setattr(figure, "run", run)
    name = figure.__name__.rpartition(".")[2]
    return lambda *options: (command_runner().invoke(reproduce, [name, *options]), tmp_path / "here" / "a.png")


def test_a_table_is_printed_and_a_picture_drawn(command, tmp_path):
    done, path = command("--out", str(tmp_path / "here" / "a.png"))
    assert done.exit_code == 0, done.output
    assert path.read_bytes().startswith(b"\x89PNG")
    assert "Distance of each band" in done.stdout and "split R̂" in done.stdout


def test_numbers_are_printed_as_json(command, seeds, tmp_path):
    done, _ = command("--out", str(tmp_path / "a.png"), "--format", "json", "--seed", "2")
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert len(document["distances"]) == 4 and len(document["x"]) == 20
    assert seeds == [2]


def test_an_unknown_format_is_refused(command):
    done, _ = command("--format", "xml")
    assert done.exit_code == 2

"""benchmarks/digit_trials.py on tiny images: readings along a run, on validation images, written down once."""

import runpy
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_digits import tiny_digits  # noqa: F401

from vmg_paper.experiments import digits, results_file, table2
from vmg_paper.experiments.table2_methods import DIGIT_METHODS, parse_size

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "digit_trials.py"


@pytest.fixture
def trials(tiny_digits, monkeypatch, tmp_path):  # noqa: F811
    out = tmp_path / "trials.jsonl"

    def run(*options):
        monkeypatch.setattr("sys.argv", [str(SCRIPT), "--size", "1x8", "--points", "3", "--out", str(out), *options])
        runpy.run_path(str(SCRIPT), run_name="__main__")
        return results_file.read(out)

    return run


def test_readings_are_of_the_network_that_training_gives_then(trials):
    found = trials("--epochs", "3", "--every", "2", "--seeds", "4", "--set", "prior_scale=0.5", "--averaging", "0.9")
    assert [(one["epoch"], one["seed"], one["points"], one["max_noise"]) for one in found] == [
        (2, 4, 3, 0.25),
        (3, 4, 3, 0.25),
    ]
    config = found[-1]["config"]
    assert (config["prior_scale"], config["averaging"], found[-1]["raw"]) == (0.5, 0.9, False)
    method = DIGIT_METHODS["vmg"]
    method = replace(method, options={**method.options, "prior_scale": 0.5}, averaging=0.9)
    network, images = method.make(parse_size("1x8"), 3, 0.25), digits.load_digits().centred()
    table2.fit(network, images.train, method.recipe(3), 4, tell=lambda progress: None)
    expected = table2.validate([network], images)
    assert {name: found[-1][name] for name in expected} == pytest.approx(expected)


def test_what_is_there_is_not_run_again(trials):
    options = "--method", "max-likelihood", "--epochs", "1", "--raw"
    first = trials(*options)
    assert len(first) == 1 and first[0]["points"] is None and first[0]["raw"]
    assert trials(*options) == first
    assert len(trials(*options, "--learning-rate", "0.5")) == 2


def test_an_option_that_a_method_lacks(trials):
    message = r"dropconnect has the numbers \['precision', 'rate'\]; got \['matched', 'prior_scale'\]"
    with pytest.raises(SystemExit, match=message):
        trials("--method", "dropconnect", "--set", "prior_scale=1", "--set", "matched=0")


def test_an_option_that_is_no_number(trials, capsys):
    with pytest.raises(SystemExit):
        trials("--set", "prior_scale")
    assert "argument --set: invalid option value: 'prior_scale'" in capsys.readouterr().err

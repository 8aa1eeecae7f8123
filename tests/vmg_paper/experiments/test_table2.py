"""Table 2: tasks, fits that resume, choices on validation images, scores and their summary."""

import json
from collections import defaultdict
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_digits import N_TEST, N_TRAIN, N_VALIDATION, tiny_digits  # noqa: F401

import vmg
from quick import command_runner
from vmg.files import append_lines, read_lines
from vmg_paper.cli.reproduce import reproduce
from vmg_paper.experiments import table2, table2_methods
from vmg_paper.experiments.digits import UNKNOWN, load_digits
from vmg_paper.experiments.published import PAPER_TABLE2
from vmg_paper.experiments.table2 import HEADER, execute, foremost, paper_error, render, render_page, summarise
from vmg_paper.experiments.table2_methods import DIGIT_METHODS, Recipe, n_weights, parse_size
from vmg_paper.layers.point_weights import DeterministicLinear, DropConnectLinear

FEW = {"20 draws": 2, "100 draws": 5}
POINTS = {True: (3, 0.1), False: (None, None)}  # and the limit, of methods with points and without


@pytest.fixture(autouse=True)
def _few_draws_and_small_batches(monkeypatch):
    monkeypatch.setattr(table2, "AVERAGES", FEW)
    monkeypatch.setattr(table2_methods, "Recipe", partial(Recipe, batch_size=20))


@pytest.fixture
def digits(tiny_digits):  # noqa: F811
    return load_digits()


def task_of(name, size="1x12", seed=0, epochs=2, **changes):
    """A small task of a method, at its own rate."""
    method = DIGIT_METHODS[name]
    points, limit = POINTS[method.has_points]
    return table2.Task(name, size, seed, epochs, points, limit, method.learning_rate)._replace(**changes)


def without_time(record):
    return {name: value for name, value in record.items() if name != "seconds"}


def test_the_last_training_images_are_for_validation_and_all_may_be_centred(digits):
    sizes = {"train": N_TRAIN - N_VALIDATION, "validation": N_VALIDATION, "test": N_TEST}
    assert digits.validation.y.tolist() == [(N_TRAIN - N_VALIDATION + k) % 10 for k in range(N_VALIDATION)]
    assert (digits.train.x.min(), digits.train.x.max()) == (0, 1)
    mean, centred = digits.train.x.mean(0), digits.centred()
    for part, size in sizes.items():
        before, after = getattr(digits, part), getattr(centred, part)
        assert len(before.x) == size
        assert torch.equal(after.x, before.x - mean) and torch.equal(after.y, before.y)
    assert tuple(digits.unknown) == tuple(centred.unknown) == UNKNOWN
    assert all(torch.equal(centred.unknown[name], x - mean) for name, x in digits.unknown.items())


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("refit", [False, True])
def test_networks_see_pixels_less_their_mean_or_as_they_are(raw, refit, digits, monkeypatch):
    seen, fit = [], table2.fit

    def spy(network, rows, *arguments, **options):
        seen.append(rows)
        return fit(network, rows, *arguments, **options)

    monkeypatch.setattr(table2, "fit", spy)
    task = task_of("vmg", "1x8", refit=refit, raw=raw)
    record = json.loads(json.dumps(execute(task, digits)))
    expected = digits if raw else digits.centred()
    rows = expected.all_training if refit else expected.train  # a refit trains on validation images too
    assert len(seen) == 1 and torch.equal(seen[0].x, rows.x) and torch.equal(seen[0].y, rows.y)
    assert table2.key(record) == task
    assert record["steps"] == 2 * len(rows.x) // 20
    assert (record["validation_error_percent"] is None) == refit


@pytest.mark.parametrize("name", DIGIT_METHODS)
def test_every_method_earns_a_whole_record(name, digits):
    method = DIGIT_METHODS[name]
    task = task_of(name, "2x12", seed=3)
    record = json.loads(json.dumps(execute(task, digits), allow_nan=False))
    assert table2.key(record) == task
    assert (record["experiment"], record["version"], record["steps"]) == ("table2", vmg.__version__, 2 * 10)
    assert record["points"] == (3 if method.has_points else None)
    assert list(record["scores"]) == ["mean network", *(FEW if method.is_random else ())]
    assert record["error_percent"] == record["scores"]["mean network"]["error_percent"]
    config = record["config"]
    assert (config["learning_rate"], config["averaging"]) == (method.learning_rate, method.averaging)
    for prediction, scores in record["scores"].items():
        assert 0 <= scores["error_percent"] <= 100
        assert scores["log_likelihood"] < 0 and 0 <= scores["ece"] <= 1 and 0 <= scores["brier"] <= 2
        assert scores["rejection"]["rates_percent"] == [0, 1, 2, 5, 10, 20]
        assert scores["rejection"]["error_percent"][0] == pytest.approx(scores["error_percent"])
        for unknown in UNKNOWN:
            single = prediction == "mean network" and method.n_members == 1
            assert (scores["auroc"][unknown]["mutual_information"] is None) == single
            assert 0 <= scores["auroc"][unknown]["entropy"] <= 1


def test_training_learns(digits):
    record = execute(task_of("max-likelihood", "1x20", epochs=30, learning_rate=0.02), digits)
    assert record["error_percent"] < 5 and record["validation_error_percent"] < 5
    assert record["scores"]["mean network"]["auroc"]["notmnist"]["entropy"] > 0.8


def test_a_killed_run_goes_on_to_the_same_record(digits, tmp_path):
    task = task_of("vmg", "2x12")
    whole = execute(task, digits)

    def kill(progress):
        if progress.step == 15:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(task, digits, checkpoints=tmp_path / "c", watch=lambda label: nullcontext(kill))
    [file] = (tmp_path / "c").iterdir()
    assert file.name == "vmg-2x12-seed-0-2-epochs-3-points-max-noise-0.1-rate-0.0003.safetensors"
    torch.manual_seed(9)
    assert without_time(execute(task, digits, checkpoints=tmp_path / "c")) == without_time(whole)


def test_test_labels_change_nothing_but_test_scores(digits):
    record = execute(task_of("vmg"), digits)
    digits.test.y.add_(1).remainder_(10)
    other = execute(task_of("vmg"), digits)
    assert other["validation_error_percent"] == record["validation_error_percent"]
    assert other["scores"] != record["scores"]


def test_members_of_an_ensemble_are_the_networks_of_single_seeds(digits, tmp_path):
    folder, task = tmp_path / "c", task_of("vmg-ensemble", seed=1)
    member = DIGIT_METHODS["vmg-ensemble"].member
    singles = [execute(task._replace(method=member, seed=seed), digits, checkpoints=folder) for seed in range(1, 6)]
    files = {file: file.stat().st_mtime_ns for file in folder.iterdir()}
    assert len(files) == DIGIT_METHODS["vmg-ensemble"].n_members == 5
    record = execute(task, digits, checkpoints=folder)
    assert {file: file.stat().st_mtime_ns for file in folder.iterdir()} == files
    scores = record["scores"]["mean network"]
    assert scores["log_likelihood"] > np.mean([one["scores"]["mean network"]["log_likelihood"] for one in singles])


def test_tasks_are_what_is_missing(tmp_path):
    out = tmp_path / "out.jsonl"
    options = {"seeds": [0, 1], "epochs": 2, "points": 3, "max_noise": 0.1, "out": out}
    wanted, missing = table2.tasks(["vmg", "dropout"], ["1x5"], **options)
    expected = [task_of(name, "1x5", seed) for seed in (0, 1) for name in ("vmg", "dropout")]
    assert wanted == missing == expected
    earned = {"experiment": "table2", "method": "vmg", "size": "1x5", "seed": 1, "epochs": 2, "max_noise": 0.1}
    earned |= {"refit": False, "raw": False, "config": {"learning_rate": DIGIT_METHODS["vmg"].learning_rate}}
    append_lines(out, [{**earned, "points": 3}, {"experiment": "table1"}])
    assert table2.tasks(["vmg", "dropout"], ["1x5"], **options) == (wanted, [*wanted[:2], wanted[3]])
    # another number of epochs, other points, another limit, a refit, other pixels, another rate
    others = {"epochs": 3, "points": 4, "max_noise": 0.2, "refit": True, "raw": True, "learning_rate": 1e-2}
    for name, value in others.items():
        _, missing = table2.tasks(["vmg"], ["1x5"], **{**options, name: value})
        assert len(missing) == 2
    # a method's own rate, said aloud, is no other run
    _, missing = table2.tasks(["vmg"], ["1x5"], **options, learning_rate=DIGIT_METHODS["vmg"].learning_rate)
    assert len(missing) == 1
    own, _ = table2.tasks(["vmg", "vmg-ensemble"], None, **{**options, "seeds": [0]})
    assert [task.size for task in own] == ["2x400", "3x150", "3x250", "3x500", "3x750", "3x150"]


def test_all_layers_of_dropconnect_decay_and_the_last_drops_nothing():
    *hidden, last = DIGIT_METHODS["dropconnect"].make((8, 8), 0, 0).layers
    assert {type(layer) for layer in hidden} == {DropConnectLinear} and type(last) is DeterministicLinear
    assert [layer.precision for layer in (*hidden, last)] == [10.0] * 3


def test_sizes():
    assert parse_size("3x150") == (150, 150, 150)
    assert n_weights("1x5") == 785 * 5 + 6 * 10
    for wrong in ("150", "3x", "0x5", "3x150x2", "ax5"):
        with pytest.raises(ValueError, match="size must be layers x units"):
            parse_size(wrong)
    for method, size in PAPER_TABLE2:
        assert not size or size in DIGIT_METHODS[method].sizes


# -- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture
def vmg_table2(tiny_digits, tmp_path):  # noqa: F811
    out, threads = tmp_path / "results" / "table2.jsonl", torch.get_num_threads()

    def invoke(*options):
        return command_runner().invoke(reproduce, ["table2", "--out", str(out), "--threads", "1", *options]), out

    yield invoke
    torch.set_num_threads(threads)


SMALL = ("--sizes", "1x8,2x6", "--methods", "vmg,max-likelihood", "--epochs", "2", "--points", "3", "--seeds", "0,1")


def test_the_command_from_images_to_table(vmg_table2, monkeypatch):
    result, out = vmg_table2(*SMALL)
    assert result.exit_code == 0, result.output
    lines = [line for line in result.stdout.splitlines() if line.startswith("|")]
    assert len(lines) == 2 + 2 * 3 + 2  # vmg has two averages over draws besides the mean network
    assert {line.count("|") for line in lines} == {lines[0].count("|")}
    assert len(read_lines(out)) == 8
    assert len(list((out.parent / "checkpoints").iterdir())) == 8

    # nothing is run twice, and nothing at all to show
    monkeypatch.setattr(table2, "execute", None)
    again, _ = vmg_table2(*SMALL)
    assert [line for line in again.stdout.splitlines() if line.startswith("|")] == lines
    shown, _ = vmg_table2("--show")
    assert [line for line in shown.stdout.splitlines() if line.startswith("|")] == lines
    out.unlink()
    nothing, _ = vmg_table2("--show")
    assert nothing.exit_code == 2 and "has none" in nothing.stderr


@pytest.mark.parametrize(
    ("change", "column", "values"),
    [(["--raw"], "pixels", ["less mean", "as they are"]), (["--learning-rate", "0.03"], "rate", ["0.01", "0.03"])],
)
def test_other_pixels_and_other_rates_are_runs_of_their_own(vmg_table2, change, column, values):
    options = ("--sizes", "1x8", "--methods", "max-likelihood", "--epochs", "1")
    (own, _), (other, out) = vmg_table2(*options), vmg_table2(*options, *change)
    assert own.exit_code == other.exit_code == 0, other.output
    rows = [cells(one.stdout.strip().splitlines()[-1]) for one in (own, other)]
    assert [row[HEADER.index(column)] for row in rows] == values
    first, second = read_lines(out)
    assert first["scores"] != second["scores"]
    assert len(list((out.parent / "checkpoints").iterdir())) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--sizes", "150"), "such as 3x150"),
        (("--methods", "vmg,pbp"), "got pbp"),
        (("--seeds", "0,0"), "different whole numbers"),
        (("--points", "200"), "equal to 150"),
    ],
)
def test_mistakes_are_told(vmg_table2, options, message):
    result, out = vmg_table2(*options)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.replace("│", " ").split())
    assert not out.exists()


def scores(error, information=0.9):
    kinds = {"entropy": 0.95, "mutual_information": information}
    return {
        "error_percent": error,
        "log_likelihood": -0.04,
        "ece": 0.003,
        "brier": 0.02,
        "auroc": {"notmnist": kinds, "fashion-mnist": kinds},
        "rejection": {"rates_percent": [0, 1, 2, 5, 10, 20], "error_percent": [error, 0.9, 0.7, error / 4, 0.1, 0.0]},
    }


def line(seed, error, method="vmg", size="3x150", points=50):
    found = {"mean network": scores(error, None), "100 draws": scores(error - 0.1)}
    if method == "max-likelihood":
        del found["100 draws"]
    return {
        "experiment": "table2",
        "method": method,
        "size": size,
        "seed": seed,
        "points": points,
        "epochs": 100,
        "max_noise": 0.01,
        "refit": False,
        "raw": False,
        "config": {"learning_rate": 1e-3},
        "validation_error_percent": 1.5,
        "seconds": 200.0,
        "scores": found,
    }


def tried(points, error):
    return {"points": points, "validation_error_percent": error}


def cells(row):
    return [cell.strip() for cell in row.strip("|").split("|")]


def test_means_and_standard_errors_over_seeds_each_by_its_last_line():
    mean, drawn = summarise([line(0, 9.9), line(0, 1.2), line(1, 1.4)])
    assert (mean["prediction"], drawn["prediction"]) == ("mean network", "100 draws")
    assert mean["error_percent"] == pytest.approx(1.3) and mean["error_percent_error"] == pytest.approx(0.1)
    assert drawn["error_percent"] == pytest.approx(1.2)
    assert mean["points"] == 50 and mean["seeds"] == 2
    assert mean["auroc"]["notmnist"] == {"entropy": pytest.approx(0.95), "mutual_information": None}
    assert mean["rejection"]["error_percent"][3] == pytest.approx(1.3 / 4)


@pytest.mark.parametrize(
    "change",
    [
        {"points": 100},
        {"epochs": 50},
        {"max_noise": 0.25},
        {"config": {"learning_rate": 1e-2}},
        {"refit": True},
        {"raw": True},
    ],
)
def test_other_runs_of_the_same_network_are_rows_of_their_own(change):
    rows = summarise([{**line(0, 1.2), **change}, line(0, 1.4)])
    assert len(rows) == 4 and {row["seeds"] for row in rows} == {1}


def test_the_papers_error_is_marked_by_how_ours_compares():
    """At 3x150 the paper has 1.18."""
    [_, _, mean, drawn] = render(summarise([line(0, 1.2)])).splitlines()
    assert len(cells(mean)) == len(HEADER)
    assert cells(mean)[10:12] == ["1.20", "1.18 −"] and cells(drawn)[10:12] == ["1.10", "1.18 +"]
    equal = render(summarise([line(0, 1.184)])).splitlines()[2]
    assert cells(equal)[11] == "1.18 +"
    assert cells(mean)[16] == "0.950" and cells(drawn)[16] == "0.950 / 0.900"


def test_a_refit_and_raw_pixels_are_told_and_a_refit_has_no_validation_error():
    refit = {**line(0, 1.1, "max-likelihood"), "refit": True, "validation_error_percent": None}
    raw = {**line(0, 1.1, "max-likelihood"), "raw": True}
    rows = render(summarise([refit, raw, line(0, 1.2, "max-likelihood")])).splitlines()[2:]
    assert [[cells(row)[k] for k in (7, 8, 12)] for row in rows] == [
        ["50,000", "less mean", "1.50"],
        ["all 60,000", "less mean", ""],
        ["50,000", "as they are", "1.50"],
    ]


def test_one_run_of_each_method_and_size_is_foremost():
    """The error tells which."""
    runs = {
        1.1: {"raw": True},
        1.2: {},
        1.3: {"raw": True, "refit": True},
        1.4: {"size": "3x250", "raw": True},
        1.5: {"size": "3x250", "raw": True, "refit": True},
        1.6: {"method": "dropout"},
        1.7: {"method": "dropout", "refit": True},
        1.8: {"method": "dropout", "refit": True, "epochs": 120},  # that no validation image speaks for
        1.9: {"size": "2x400", "max_noise": 0.1, "validation_error_percent": 1.4},
        2.0: {"size": "2x400", "max_noise": 0.25, "validation_error_percent": 1.6},
        # refits go by the same run on fewer images, and by the choice of their points
        2.1: {"size": "2x400", "max_noise": 0.1, "refit": True},
        2.2: {"size": "2x400", "max_noise": 0.25, "refit": True},
        2.3: {"size": "3x500", "refit": True, "points": 150},
        2.4: {"size": "3x500", "points": 150, "validation_error_percent": 1.3},
        2.5: {"size": "3x500", "refit": True, "tried": [tried(50, 1.2), tried(150, 1.3)]},
    }
    rows = foremost(summarise([{**line(0, error), **change} for error, change in runs.items()]))
    assert [row["error_percent"] for row in rows if row["prediction"] == "mean network"] == [1.2, 1.5, 2.1, 2.5, 1.7]
    assert len(rows) == 10


def test_figures_of_the_paper():
    assert paper_error("vmg", "3x750") == 1.05
    assert paper_error("vmg", "3x100") is None
    assert paper_error("dropout", "2x800") == paper_error("dropout", "3x150") == 1.25  # its size is not given
    assert paper_error("vmg-ensemble", "3x150") is None


def test_order():
    summary = summarise([line(0, 1.6, "max-likelihood", "2x800", None), line(0, 1.1, size="3x250"), line(0, 1.2)])
    assert [(row["method"], row["size"]) for row in summary] == [
        *[("vmg", "3x150")] * 2,
        *[("vmg", "3x250")] * 2,
        ("max-likelihood", "2x800"),
    ]


def test_the_page_shows_what_the_results_hold():
    root = Path(__file__).parents[3]
    summary = summarise(read_lines(root / "results" / "table2.jsonl"))
    page = (root / "docs" / "table2.md").read_text(encoding="utf-8")
    assert render_page(summary) in page, "run: vmg reproduce table2 --show --write docs/table2.md"
    alike = page[page.index("## Like for like") : page.index("## Our recipe")]
    seen = {tuple(cell.strip() for cell in line.split("|")[1:3]) for line in alike.splitlines() if "|" in line}
    assert {(method, size) for method, size in PAPER_TABLE2 if size} <= seen, "every row of the paper's table is there"


def test_tables_of_choices_show_what_the_trials_read():
    """Each row of the page's two tables is a run of the file, with its readings."""
    root = Path(__file__).parents[3]
    page = (root / "docs" / "table2.md").read_text(encoding="utf-8")
    trials = read_lines(root / "lab" / "results" / "digit_trials.jsonl")
    readings = defaultdict(dict)
    for line in trials:
        run = tuple((key, str(line[key])) for key in ("method", "size", "seed", "points", "max_noise", "raw", "config"))
        readings[run, line["epochs"]][line["epoch"]] = line
    of_vmg, of_dropconnect = set(), set()
    for (run, _), by_epoch in readings.items():
        last = by_epoch[max(by_epoch)]
        errors = {epoch: f"{one['validation_error_percent']:.2f}" for epoch, one in by_epoch.items()}
        log_likelihoods = {epoch: f"{one['validation_log_likelihood']:.3f}" for epoch, one in by_epoch.items()}
        if dict(run)["method"] == "vmg-zero-mean":
            shown = [epoch for epoch in (20, 30, 40, 50, 60, 80) if epoch in errors]
            of_vmg.add((*(errors.get(epoch, "") for epoch in (20, 30, 40, 50, 60, 80)), log_likelihoods[shown[-1]]))
        elif dict(run)["method"] == "dropconnect":
            of_dropconnect.add((str(last["config"]["precision"]), errors[50], log_likelihoods[50]))
    choices = page[page.index("## How the settings were chosen") :]
    rows = [cells(line) for line in choices.splitlines() if line.startswith("| ") and "---" not in line]
    of_points = [row for row in rows if len(row) == 10 and row[0] != "points"]
    assert len(of_points) == 17 and {tuple(row[3:]) for row in of_points} <= of_vmg
    for _, _, precision, _, wrong, log_likelihood in [row for row in rows if len(row) == 6 and row[0] != "pixels"]:
        for one in zip(wrong.split(", "), log_likelihood.split(", "), strict=True):
            assert (f"{float(precision)}", *one) in of_dropconnect

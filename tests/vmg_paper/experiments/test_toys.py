"""The two toy figures with tiny settings, from the command line too: shapes, distances and what they mean."""

import functools
from pathlib import Path

import numpy as np
import pytest
import torch

from quick import command_runner
from vmg.files import read_lines
from vmg.prediction import draw_functions
from vmg_paper.cli.figures import RESULTS
from vmg_paper.cli.reproduce import reproduce
from vmg_paper.data.tables import cubic
from vmg_paper.experiments import figure1, figure2
from vmg_paper.experiments.toys import Band, Settings, Toy, distance, fit_network, render_lines

TINY = Settings(
    n_steps=20, n_draws=10, n_starts=2, n_epochs=2, n_pbp_starts=2, n_chains=2, n_warmup=10, n_kept=8, n_points=21
)


@functools.cache
def tiny_run(figure):
    """The result of a figure, and the names that were told while it ran."""
    told = []
    return figure.run(seed=1, settings=TINY, tell=told.append), tuple(told)


NAMES = {  # in the order of drawing
    figure1: [
        *("Factorised Gaussian", "PBP", "Dropout", "Matrix Gaussian", "Matrix Gaussian, conditional KL"),
        *("Global inducing points", "TableRegressor()", "HMC"),
    ],
    figure2: [
        *("Matrix Gaussian, ReLU", "Conditional KL, ReLU", "Global inducing, ReLU", "HMC, ReLU"),
        *("Matrix Gaussian, cosine", "Conditional KL, cosine", "Global inducing, cosine", "HMC, cosine"),
        *("Matrix Gaussian, tanh", "Conditional KL, tanh", "Global inducing, tanh", "HMC, tanh"),
        *("PBP", "TableRegressor()"),
    ],
}
LEARNED = ("PBP", "TableRegressor()")  # which learn the noise


@pytest.fixture(params=[figure1, figure2], ids=["figure1", "figure2"])
def tiny(request):
    return request.param, *tiny_run(request.param)


def test_every_panel_of_the_paper_is_a_curve_along_the_drawn_range(tiny):
    figure, result, heard = tiny
    assert [band.name for band in result.bands] == NAMES[figure]
    assert set(heard) == set(NAMES[figure])
    assert {band.truth for band in result.bands} - {""} == set(result.truths)
    assert result.x.shape == result.y.shape == (20,)
    for band in result.bands:
        assert band.x.shape == band.mean.shape == band.std.shape == band.epistemic_std.shape == (21,)
        assert (band.x[0], band.x[-1]) == figure.RANGE
        assert np.isfinite(band.mean).all() and (band.std > 0).all()
        if band.name not in LEARNED:
            noise = figure1.NOISE if figure is figure1 else figure2.noise_scale(result.x)
            np.testing.assert_allclose(band.std**2, band.epistemic_std**2 + noise**2, rtol=1e-9)


def test_inside_is_where_the_data_are(tiny):
    figure, result, _ = tiny
    assert result.inside(result.x).all()
    assert not result.inside(np.array([-7.0, 7.0, 0.7 if figure is figure2 else 7.0])).any()


def test_the_noise_of_osbands_toy_is_what_its_recipe_scatters():
    x = np.random.default_rng(0).uniform(0, 1, 400_000)
    moved = x + np.random.default_rng(1).normal(0, figure2.INPUT_NOISE, x.size)
    scatter = np.sqrt(np.mean((figure2.curve(moved) - figure2.curve(x)) ** 2))
    assert figure2.noise_scale(x) == pytest.approx(scatter, rel=0.05)  # of first order in the noise


def test_distances_are_in_true_standard_deviations_and_ratios():
    x = np.linspace(0, 1, 5)
    truth = Band("truth", x, np.zeros(5), np.full(5, 2.0), np.full(5, 1.0))
    inside = x < 0.4
    band = Band("other", x, np.where(inside, 1.0, -4.0), np.where(inside, 2.0, 4.0), np.ones(5), truth="truth")
    found = distance(band, truth, inside)
    assert list(found.values()) == pytest.approx([0.5, 2, 1, 2])
    assert list(distance(truth, truth, inside).values()) == [0, 0, 1, 1]


def test_the_start_with_the_best_objective_predicts():
    x = np.linspace(-3, 3, 12)
    y = x**3
    fitted = fit_network(figure1.matrix_gaussian, x, y, noise_scale=figure1.NOISE, n_steps=30, n_starts=3, seed=0)
    assert fitted.objectives.shape == (3,) and np.isfinite(fitted.objectives).all()
    draws = draw_functions(fitted.network, torch.as_tensor((x - x.mean()) / x.std())[:, None], 5, 1)  # [5, 3, 12, 1]
    best = draws[:, int(fitted.objectives.argmax())].numpy() * y.std() + y.mean()
    np.testing.assert_allclose(fitted.predict(x, 5, seed=1).loc, best)


@pytest.mark.parametrize("make", figure1.VARIATIONAL.values(), ids=list(figure1.VARIATIONAL))
def test_longer_training_raises_the_objective(make):
    x = np.linspace(-3, 3, 12)
    options = {"noise_scale": figure1.NOISE, "n_starts": 2, "seed": 0}
    short, long = (fit_network(make, x, x**3, n_steps=n, **options).objectives.max() for n in (5, 400))
    assert long > short + 10


# -- kept numbers -----------------------------------------------------------------------------------------------------

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("figure", [figure1, figure2], ids=["figure1", "figure2"])
def test_the_command_draws_and_replaces_its_lines_and_the_tables_of_the_page(figure, monkeypatch, tmp_path):
    """The fits are there already."""
    result, told = tiny_run(figure)
    seeds, counts, name = [], [], figure.__name__.rpartition(".")[2]

    def run(*, seed, tell, **options):
        seeds.append(seed)
        for method in told:
            tell(method)
        return result

    monkeypatch.setattr(figure, "run", run)
    picture, lines, page = tmp_path / "here" / "a.png", tmp_path / "kept.jsonl", tmp_path / "page.md"
    page.write_text(f"before\n<!-- {RESULTS} -->\nold\n<!-- end of {RESULTS} -->\nafter\n")
    lines.write_text('{"figure": "figure0", "seed": 0, "prior_scale": 1.0, "name": "a", "truth": "", "note": ""}\n')
    for seed in ("2", "0", "2"):
        options = ["--out", str(picture), "--record", str(lines), "--write", str(page), "--seed", seed]
        done = command_runner().invoke(reproduce, [name, *options])
        assert done.exit_code == 0, done.output
        counts.append(len(read_lines(lines)))
    n = len(NAMES[figure])
    assert seeds == [2, 0, 2] and counts == [1 + n, 1 + 2 * n, 1 + 2 * n]  # a run takes the place of the same run
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "| PBP |" in done.stdout and "split R̂" in done.stdout
    text = page.read_text()
    assert text.startswith("before") and text.endswith("after\n") and "old" not in text and "TableRegressor()" in text
    prior = figure.PRIOR_SCALE
    assert f"| method | data 0, N(0, {prior:g}²) | data 2, N(0, {prior:g}²) |" in text


@functools.cache
def kept():
    return read_lines(ROOT / "results" / "figures.jsonl")


def test_kept_lines_are_those_of_the_figure(tiny):
    figure, result, _ = tiny
    lines = result.lines(figure=figure.__name__.rpartition(".")[2], seed=0, prior_scale=figure.PRIOR_SCALE)
    assert [line["name"] for line in lines] == NAMES[figure]
    first, band = lines[0], result.bands[0]
    apart = distance(band, result.truths[band.truth], result.inside(band.x))
    assert {key: first[key] for key in apart} == pytest.approx(apart, abs=1e-4)
    some = np.linspace(0, 20, 9).round().astype(int)
    np.testing.assert_allclose(first["mean"], band.mean[some], atol=1e-6)
    assert all(np.isfinite(line[key]).all() for line in lines for key in ("mean", "std"))
    assert f"| {first['name']} | {first['mean_inside']:.2f} |" in render_lines(lines)


def test_the_page_shows_the_kept_numbers():
    assert {line["figure"] for line in kept()} == {"figure1", "figure2"}
    assert render_lines(kept()) in (ROOT / "docs" / "figures.md").read_text(encoding="utf-8")


def test_kept_numbers_are_those_of_a_new_fit():
    """Of the quickest method; all others are as deterministic."""
    X, y = cubic(seed=0)
    toy = Toy(X, y, figure1.NOISE, figure1.RANGE, Settings(), 0, lambda name: None)
    [line] = [line for line in kept() if (line["figure"], line["seed"], line["name"]) == ("figure1", 0, "PBP")]
    band = toy.pbp_band((figure1.HIDDEN,), "HMC")
    some = np.searchsorted(band.x, np.array(line["x"]) - 1e-6)
    np.testing.assert_allclose(line["mean"], band.mean[some], rtol=1e-3, atol=1e-2)
    np.testing.assert_allclose(line["std"], band.std[some], rtol=1e-2)


def test_global_inducing_points_are_as_wide_as_the_truth_where_there_are_no_data():
    wide = {line["name"]: line["width_outside"] for line in kept() if line["name"].startswith("Global inducing")}
    assert len(wide) == 4 and max(wide.values()) < 1.5

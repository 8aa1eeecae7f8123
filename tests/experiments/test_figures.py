"""The two toy figures with tiny settings: shapes, finite distances, and distances that mean what they say."""

import numpy as np
import pytest

from vmg.experiments import figure1, figure2
from vmg.experiments.bands import Band, ToyResult, distance

TINY = {
    "n_steps": 20,
    "n_draws": 10,
    "n_epochs": 2,
    "n_starts": 2,
    "n_chains": 2,
    "n_warmup": 10,
    "n_kept": 8,
    "n_points": 21,
}
NAMES = {
    figure1: ["Factorised Gaussian", "PBP", "Dropout", "Matrix Gaussian"],
    figure2: ["PBP", "Matrix Gaussian, ReLU", "Matrix Gaussian, cosine", "Matrix Gaussian, tanh"],
}


@pytest.fixture(scope="module", params=[figure1, figure2], ids=["figure1", "figure2"])
def tiny(request):
    heard = []
    result = request.param.run(seed=1, settings=request.param.Settings(**TINY), tell=heard.append)
    return request.param, result, heard


def test_every_panel_of_the_paper_is_there(tiny):
    figure, result, heard = tiny
    assert [band.name for band in result.bands] == NAMES[figure]
    assert {band.truth for band in result.bands} == {band.name for band in result.truths}
    assert set(heard) == {band.name for band in (*result.bands, *result.truths)}


def test_bands_are_curves_along_the_drawn_range(tiny):
    figure, result, _ = tiny
    assert result.x.shape == result.y.shape == (20,)
    for band in (*result.bands, *result.truths):
        assert band.x.shape == band.mean.shape == band.std.shape == band.epistemic_std.shape == (21,)
        assert (band.x[0], band.x[-1]) == figure.RANGE
        assert np.isfinite(band.mean).all() and (band.std >= figure.NOISE * (1 - 1e-9)).all()
        np.testing.assert_allclose(band.std**2, band.epistemic_std**2 + figure.NOISE**2, rtol=1e-9)


def test_distances_and_the_document_are_finite(tiny):
    _, result, _ = tiny
    document = result.document()
    assert len(document["distances"]) == 4 and len(document["bands"]) == 4 + len(result.truths)
    for one in document["distances"]:
        numbers = [value for value in one.values() if isinstance(value, float)]
        assert len(numbers) == 4 and np.isfinite(numbers).all()


def test_inside_is_where_the_data_are(tiny):
    _, result, _ = tiny
    assert result.inside(result.x).all()
    assert not result.inside(np.array([-7.0, 7.0])).any()


def test_the_gap_of_osbands_toy_is_outside():
    result = figure2.run(seed=0, settings=figure2.Settings(**TINY), tell=lambda name: None)
    assert not result.inside(np.array([0.7])).any()


def test_distances_are_in_true_standard_deviations_and_log_ratios():
    x = np.linspace(0, 1, 5)
    truth = Band("truth", x, np.zeros(5), np.full(5, 2.0), np.full(5, 1.0))
    inside = x < 0.4
    band = Band("other", x, np.where(inside, 1.0, -4.0), np.where(inside, 2.0, 4.0), np.ones(5), truth="truth")
    found = distance(band, truth, inside)
    np.testing.assert_allclose(
        [found.mean_inside, found.mean_outside, found.log_std_inside, found.log_std_outside], [0.5, 2, 0, np.log(2)]
    )
    same = ToyResult(x, x, np.sin, [Band(**{**vars(truth), "name": "same", "truth": "truth"})], [truth], [(0.0, 0.4)])
    assert [value for value in vars(same.distances()[0]).values() if isinstance(value, float)] == [0.0] * 4

"""Figures are drawn with every band and every method."""

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.image import imread

from vmg_paper.experiments.toys import Band, ToyResult
from vmg_paper.figures import draw_band_figure

X = np.linspace(-1, 1, 31)


def result(n):
    """n bands, the last of them the truth of the others."""
    std = 0.1 + X**2
    bands = [Band(f"method {k}", X, X, std, std, truth="HMC") for k in range(n - 1)]
    bands.append(Band("HMC", X, 0 * X, std, std, rhat=1.0))
    return ToyResult(X[::3], X[::3], np.sin, bands, [(-1.0, 1.0)])


@pytest.mark.parametrize(("n", "columns", "widths"), [(5, 3, [3]), (4, 4, [1, 2]), (1, 2, [2])])
def test_a_figure_is_drawn_from_whole_curves(tmp_path, monkeypatch, n, columns, widths):
    bands, labels, lines = [], [], []
    fill, plot = Axes.fill_between, Axes.plot

    def filled(self, *arguments, label, **options):
        bands.append(arguments)
        labels.append(label)
        return fill(self, *arguments, label=label, **options)

    monkeypatch.setattr(Axes, "fill_between", filled)
    monkeypatch.setattr(Axes, "plot", lambda self, *a, **k: lines.append(a) or plot(self, *a, **k))
    path = tmp_path / "figure.png"
    draw_band_figure(result(n), path, widths=widths, height=(-2.0, 2.0), columns=columns, target_label="sin")
    image = imread(path)
    assert image.ndim == 3 and min(image.shape[:2]) > 300
    assert labels == [f"±{width} std" for width in reversed(widths)] * n, "wider bands are drawn first"
    assert all(x.shape == low.shape == high.shape == X.shape and (low < high).all() for x, low, high in bands)
    # mean and target everywhere, both edges of the truth where there is one, and data
    assert len(lines) == 2 * n + 2 * (n - 1) + n

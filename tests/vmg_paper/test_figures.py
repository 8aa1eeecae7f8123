"""Figures are drawn with every band and every method."""

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import imread

from vmg_paper import figures
from vmg_paper.experiments.toys import Band, ToyResult
from vmg_paper.figures import MethodPicture, draw_band_figure, draw_table2_figure

X = np.linspace(-1, 1, 31)


def result(n):
    """n bands, the last of them the truth of the others."""
    std = 0.1 + X**2
    bands = [Band(f"method {k}", X, X, std, std, truth="HMC") for k in range(n - 1)]
    return ToyResult(X[::3], X[::3], np.sin, bands, [Band("HMC", X, 0 * X, std, std, rhat=1.0)], [(-1.0, 1.0)])


@pytest.mark.parametrize(("n", "columns", "widths"), [(5, 3, [3]), (4, 4, [1, 2]), (1, 2, [2])])
def test_a_figure_is_drawn_from_whole_curves(tmp_path, monkeypatch, n, columns, widths):
    bands, lines = [], []
    fill, plot = Axes.fill_between, Axes.plot
    monkeypatch.setattr(Axes, "fill_between", lambda self, *a, **k: bands.append(a) or fill(self, *a, **k))
    monkeypatch.setattr(Axes, "plot", lambda self, *a, **k: lines.append(a) or plot(self, *a, **k))
    path = tmp_path / "figure.png"
    draw_band_figure(result(n), path, widths=widths, height=(-2.0, 2.0), columns=columns, target_label="sin")
    image = imread(path)
    assert image.ndim == 3 and min(image.shape[:2]) > 300
    assert len(bands) == n * len(widths)
    assert all(x.shape == low.shape == high.shape == X.shape and (low < high).all() for x, low, high in bands)
    # mean and target everywhere, both edges of the truth where there is one, and data
    assert len(lines) == 2 * n + 2 * (n - 1) + n


def test_wider_bands_are_drawn_first(tmp_path, monkeypatch):
    drawn = []
    fill = Axes.fill_between
    monkeypatch.setattr(Axes, "fill_between", lambda self, *a, **k: drawn.append(k["label"]) or fill(self, *a, **k))
    options = {"widths": [1, 2], "height": (-2.0, 2.0), "columns": 1, "target_label": "sin"}
    draw_band_figure(result(1), tmp_path / "figure.png", **options)
    assert drawn == ["±2 std", "±1 std"]


METHODS = [
    MethodPicture(
        "vmg",
        {"3x150": 1.1, "3x250": 1.05},
        {"3x150": 1.18, "3x250": 1.11, "2x400": 1.15},
        ([0, 1, 5], [98.9, 99.2, 99.8]),
        {"notmnist": 0.98, "fashion-mnist": 0.99},
    ),
    MethodPicture(
        "dropout", {"3x150": 1.4}, {}, ([0, 1, 5], [98.6, 99.0, 99.6]), {"notmnist": 0.9, "fashion-mnist": 0.8}
    ),
    MethodPicture("dropconnect", {}, {"2x400": 1.2}, paper_error_anywhere=1.25),
]


def draw(monkeypatch, path, methods):
    kept = []

    class Kept(Figure):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            kept.append(self)

    monkeypatch.setattr(figures, "Figure", Kept)
    draw_table2_figure(methods, ["3x150", "3x250", "2x400"], path, at_size="3x150")
    assert path.read_bytes().startswith(b"\x89PNG")
    return kept[0]


def test_every_number_is_drawn(monkeypatch, tmp_path):
    figure = draw(monkeypatch, tmp_path / "a.png", METHODS)
    by_size, by_rejection, by_set = figure.axes
    lines = {
        tuple(map(float, line.get_ydata())): list(line.get_xdata()) for line in by_size.lines if len(line.get_xdata())
    }
    paper = {(1.18, 1.11): [0, 1], (1.15,): [2], (1.2,): [2], (1.25, 1.25): [0, 1]}  # depths are not joined
    assert lines == {(1.1, 1.05): [0, 1], (1.4,): [0], **paper}
    assert [list(line.get_ydata()) for line in by_rejection.lines] == [[98.9, 99.2, 99.8], [98.6, 99.0, 99.6]]
    assert [list(line.get_ydata()) for line in by_set.lines] == [[0.98, 0.99], [0.9, 0.8]]
    assert [label.get_text() for label in by_set.get_xticklabels()] == ["notMNIST", "Fashion-MNIST"]
    [legend] = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [
        "vmg",
        "dropout",
        "dropconnect",
        "paper",
        "paper, of no stated size",
    ]


def test_figures_of_the_paper_alone_can_be_drawn(monkeypatch, tmp_path):
    figure = draw(monkeypatch, tmp_path / "a.png", METHODS[2:])
    assert not figure.axes[2].lines

from matplotlib.figure import Figure

from vmg_paper.figures import table2_figure
from vmg_paper.figures.table2_figure import MethodPicture, draw_table2_figure

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

    monkeypatch.setattr(table2_figure, "Figure", Kept)
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

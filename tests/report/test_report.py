import re
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest

from vmg.estimators import TableModel
from vmg.report import number, percent, probability, render_report, verdict, write_report
from vmg.tables.cells import TableError
from vmg.tables.inputs import TableInputs

VOID = {"meta", "br", "img", "path", "use", "rect", "image"}


class Page(HTMLParser):
    """What a browser would find: sections, tags that do not match, text."""

    def __init__(self, html):
        super().__init__()
        self.sections, self.tags, self.open, self.unmatched, self.words = [], [], [], [], []
        self.feed(html)
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag == "section":
            self.sections.append(dict(attributes)["id"])
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in VOID and (not self.open or self.open.pop() != tag):
            self.unmatched.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data):
        self.words.append(data)


@pytest.fixture(scope="module")
def regression_page(regression):
    return render_report(*regression)


@pytest.fixture(scope="module")
def multiclass_page(multiclass):
    return render_report(*multiclass)


ALWAYS = ["data", "sharpness", "rows", "columns", "effects", "model"]


def test_a_regression_has_every_section(regression_page):
    page = Page(regression_page)
    expected = ["short", "data", "fit", "calibration", "sharpness", "residuals", *ALWAYS[2:]]
    assert page.sections == expected
    assert not page.unmatched and not page.open
    for words in ("Typical error (RMSE)", "CRPS", "Coverage of intervals", "Most certain", "Least certain"):
        assert words in page.text
    n_columns, n_others = 5, 7
    assert regression_page.count("<svg") == n_columns + n_others


def test_a_classification_has_every_section(multiclass_page):
    page = Page(multiclass_page)
    assert page.sections == ["short", "data", "fit", "calibration", *ALWAYS[1:]]
    assert not page.unmatched and not page.open
    for words in ("Accuracy", "Brier score", "predicted class", "by ignorance (mutual information)", "low", "mid"):
        assert words in page.text


def test_networks_are_said_as_they_are(regression_page, multiclass_page, line):
    page = Page(regression_page)
    assert "An ensemble of 4 Bayesian neural networks with one hidden layer of 8 units (relu, tanh)" in page.text
    assert "The output layer and its noise are integrated out" in page.text
    assert "64 draws are behind each prediction" in Page(multiclass_page).text
    model, frame = line
    mixture = Page(render_report(model, frame.iloc[:30])).text
    assert "A Bayesian neural network with 2 hidden layers of 4, 3 units (relu), anchored at a draw" in mixture


@pytest.mark.parametrize(
    ("slope", "noise", "words"),
    [(3.0, 1.0, "Useful, and honest"), (0.0, 3.1, "Of little use"), (3.0, 0.3, "Useful, and too sure of itself")],
)
def test_the_first_line_is_a_verdict(line, slope, noise, words):
    model, frame = line
    other = TableModel(
        type(model.estimator)(model.inputs, [slope, 0.0], noise=noise), "y", "regression", base_rate=(0.0, 3.2)
    )
    page = Page(render_report(other, frame))
    assert words in page.text and page.text.index(words) < page.text.index("In short")


def test_rows_are_counted_from_one_unless_they_have_names(regression):
    model, frame = regression
    page, names = render_report(model, frame.reset_index(drop=True)), render_report(model, frame)
    labels = [int(label) for label in re.findall(r'data-name="row">(\d+)<', page)]
    assert min(labels) >= 1 and max(labels) <= 40
    kept = re.findall(r'data-name="row">(\d+)<', names)
    assert [int(name) - 79 for name in kept] == labels


def test_amounts_of_many_magnitudes_have_logarithmic_axes(line):
    frame = line[1].assign(y=lambda rows: np.exp(2 * rows["a"]))
    amounts = TableModel.fit(frame, "y", options={"max_iter": 20, "n_members": 2, "likelihood": "lognormal"})
    page = render_report(amounts, frame)
    fit = page[page.index("Truth against prediction") :]
    ticks = re.findall(r">([\d.,]+)</text>", fit[: fit.index("</svg>")])
    assert {"0.01", "1", "100"} <= set(ticks) and "$" not in page


def test_two_classes_show_the_effect_on_the_second(binary):
    page = Page(render_report(*binary))
    assert page.sections == ["short", "data", "fit", "calibration", *ALWAYS[1:]]
    assert "the probability of yes as one column" in page.text


def test_nothing_is_loaded_from_elsewhere(regression_page, multiclass_page):
    for html in (regression_page, multiclass_page):
        assert "http" not in html
        assert "@import" not in html
        assert not re.search(r"url\((?!#)", html)
        for tag, attributes in Page(html).tags:
            assert tag not in ("script", "link", "iframe", "img", "object", "embed")
            assert not any(name.startswith("on") or name == "src" for name in attributes)
            assert all(value.startswith("#") for name, value in attributes.items() if name.endswith("href"))


def test_colours_follow_the_page(regression_page):
    svg = regression_page[regression_page.index("<svg") :]
    drawn = set(re.findall(r"(?:fill|stroke): ([^;\"]+)", svg))
    assert {colour for colour in drawn if colour.startswith("#")} == set()
    defined = set(re.findall(r"--([a-z]+):", regression_page))
    assert {name for colour in drawn for name in re.findall(r"var\(--(\w+)\)", colour)} <= defined


EVIL = "<script>alert(1)</script>"
IMAGE = '"><img src=x onerror=alert(2)>'


@pytest.mark.parametrize("task", ["regression", "classification"])
def test_names_and_values_are_escaped(task):
    rng = np.random.default_rng(0)
    names = [EVIL, "$a_1$ & $", "名前\n2"]
    frame = pd.DataFrame(rng.standard_normal((40, 3)), columns=names)
    frame[IMAGE] = rng.choice([EVIL, IMAGE, "$\\frac"], 40)
    target = f"{EVIL} & {IMAGE}"
    frame[target] = rng.choice([EVIL, IMAGE], 40) if task == "classification" else frame[EVIL] * 2
    frame.index = [f"{EVIL}{i}" for i in range(40)]
    options = {"hidden_layer_sizes": (3,), "max_iter": 1, "n_members": 2, "random_state": 0}
    model = TableModel.fit(frame, target, task=task, options=options)
    extra = frame.assign(**{"<i>new</i>": EVIL})
    html = render_report(model, extra, note=EVIL)
    page = Page(html)
    assert {"script", "img", "i"}.isdisjoint(tag for tag, _ in page.tags)
    assert "<script" not in html and "<img" not in html and "<i>" not in html
    assert EVIL in page.text
    assert not page.unmatched and not page.open


def test_the_same_input_gives_the_same_file(multiclass, multiclass_page, tmp_path):
    model, frame = multiclass
    write_report(model, frame.copy(), tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == multiclass_page
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_without_the_target_the_truth_is_left_out_and_the_page_says_so(regression):
    model, frame = regression
    page = Page(render_report(model, frame.drop(columns=model.target)))
    assert page.sections == ["no-truth", "data", "fit", *ALWAYS[1:]]
    assert "The table has no column price" in page.text
    assert not page.unmatched and not page.open


def test_a_target_without_values_counts_as_unknown(binary):
    model, frame = binary
    page = Page(render_report(model, frame.assign(dear=None)))
    assert page.sections == ["no-truth", *ALWAYS]
    assert "No row of the table has a usable value" in page.text
    assert not page.unmatched and not page.open


@pytest.mark.parametrize("which", ["regression", "multiclass"])
def test_one_row(which, request):
    model, frame = request.getfixturevalue(which)
    page = Page(render_report(model, frame.iloc[:1]))
    assert "looked at on 1 row." in page.text
    assert "too few rows to judge" in page.text
    assert not page.unmatched and not page.open


def test_a_constant_prediction_of_a_constant_target(line):
    model, frame = line
    constant = TableModel(type(model.estimator)(model.inputs, [0.0, 0.0], noise=1e-3), "y", "regression")
    page = Page(render_report(constant, frame.iloc[:30].assign(y=1.0)))
    assert "Not defined: the rows do not differ" in page.text
    assert "too narrow, the model is too sure of itself" in page.text


def test_infinite_variance_and_a_note(line):
    model, frame = line
    heavily = TableModel(type(model.estimator)(model.inputs, [3.0, 0.0], df=1.5), "y", "regression")
    page = Page(render_report(heavily, frame.iloc[:40], note="rows.csv, today"))
    assert "rows.csv, today" in page.text
    assert "residuals" in page.sections


def test_a_large_table_is_sampled_and_the_page_stays_small(line):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.standard_normal((6_000, 2)), columns=["x0", "x1"])
    frame["y"] = frame["x0"] + rng.standard_normal(6_000)
    inputs = TableInputs.of_numbers(frame[["x0", "x1"]].to_numpy(), ["x0", "x1"])
    model = TableModel(type(line[0].estimator)(inputs, [1.0, 0.0]), "y", "regression")
    html = render_report(model, frame)
    assert len(html) < 1_000_000
    assert "pictures show 5000 rows chosen at random" in Page(html).text


def test_a_table_that_cannot_be_used_is_a_clear_error(line):
    model, frame = line
    with pytest.raises(TableError, match="lacks 1 column"):
        render_report(model, frame.drop(columns="a"))
    with pytest.raises(TableError, match="at least one row"):
        render_report(model, frame.iloc[:0])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (np.nan, "–"),
        (0, "0"),
        (-3.14159, "−3.14"),
        (0.9, "0.900"),
        (99.97, "100"),
        (-99.97, "−100"),
        (1234.5, "1234"),
        (2021, "2021"),
        (12345.6, "12,346"),
        (1.5e9, "1.50e+09"),
        (-2e-5, "−2.00e-05"),
        (np.inf, "∞"),
        (True, "True"),
        ("-text", "-text"),
        (pd.Timestamp("2020-02-03"), "2020-02-03"),
        (pd.Timestamp("2020-02-03 04:05"), "2020-02-03 04:05"),
        (pd.NaT, "–"),
    ],
)
def test_numbers_as_people_write_them(value, text):
    assert number(value) == text


def test_shares_as_people_write_them():
    assert percent(0.123) == "12\u00a0%"
    shown = [probability(p).replace("\u00a0", " ") for p in (0.9999, 0.5, 0.995, 0.0001)]
    assert shown == ["> 99.9 %", "50 %", "99.5 %", "< 0.1 %"]


def test_verdicts():
    verdicts = [verdict(value, 0.5, 0.1) for value in (0.5, 0.1, 0.0, None, np.nan)]
    assert verdicts == ["fine", "fair", "poor", "unknown", "unknown"]


def test_a_table_with_times_of_day_has_a_report():
    frame = pd.DataFrame({"visit": [f"{9 + k % 9:02}:{7 * k % 60:02}" for k in range(40)], "y": np.arange(40.0)})
    model = TableModel.fit(frame, "y", options={"max_iter": 5, "n_members": 2, "random_state": 0})
    assert "1 time column" in render_report(model, frame)

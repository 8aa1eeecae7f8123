import json

import numpy as np
import pandas as pd
import pytest

from messy import houses
from vmg.review.remarks import table_remarks
from vmg.tables import TableEncoder, TableError
from vmg.tables.columns import MAX_LEVELS


def encode(frame, new=None):
    """Features of ``new`` (or of ``frame`` itself) by name, the encoder being fitted on ``frame``."""
    encoder = TableEncoder.fit(frame)
    features = encoder.transform(frame if new is None else new)
    assert features.dtype == np.float64 and np.isfinite(features).all()
    assert features.shape[1] == len(encoder.feature_names)
    return dict(zip(encoder.feature_names, features.T.tolist(), strict=True))


CITIES = pd.DataFrame({"c": ["x", "y", "x", "y"]})
HOLES = pd.DataFrame({"a": [1.0, 2.0, None, 9.0]})


@pytest.mark.parametrize(
    ("frame", "new", "expected"),
    [
        (pd.DataFrame({"a": [3, 1], "b": [0.5, -1.5]}), None, {"a": [3, 1], "b": [0.5, -1.5]}),
        (HOLES, None, {"a": [1, 2, 2, 9], "a: missing": [0, 0, 1, 0]}),
        (HOLES.dropna(), HOLES, {"a": [1, 2, 2, 9]}),
        (
            pd.DataFrame({"c": ["x", "y", "x", "y", None]}),
            None,
            {"c = x": [1, 0, 1, 0, 0], "c = y": [0, 1, 0, 1, 0], "c: missing": [0, 0, 0, 0, 1]},
        ),
        (CITIES, pd.DataFrame({"c": ["z", "x"]}), {"c = x": [0, 1], "c = y": [0, 0]}),
        (pd.DataFrame({"c": pd.Categorical([1, 2, 1, 2])}), None, {"c = 1": [1, 0, 1, 0], "c = 2": [0, 1, 0, 1]}),
        (pd.DataFrame({"a": [True, False]}), pd.DataFrame({"a": ["yes", "FALSE", "1"]}), {"a": [1, 0, 1]}),
        (
            pd.DataFrame({"a": [True, False, True], "b": pd.Series([True, None, False], dtype=object)}),
            None,
            {"a": [1, 0, 1], "b": [1, 0.5, 0], "b: missing": [0, 1, 0]},
        ),
    ],
    ids=[
        *("numbers", "a hole becomes the median", "a hole that the fit never saw has no mark to learn from"),
        *("categories", "an unseen category without a pool", "an explicit category of numbers", "booleans", "holes"),
    ],
)
def test_features_of_cells(frame, new, expected):
    assert encode(frame, new) == expected


def test_a_few_words_among_numbers_count_as_missing():
    frame = pd.DataFrame({"a": [str(i) for i in range(19)] + ["old"]})
    assert encode(frame)["a: missing"][-1] == 1
    assert "Column 'a': not numbers, so missing: 'old'." in TableEncoder.fit(frame).describe()


def test_rare_and_unseen_categories_are_pooled():
    frame = pd.DataFrame({"c": [f"v{i % 30:02d}" for i in range(90)] + ["once"]})
    encoder = TableEncoder.fit(frame)
    assert len(encoder.feature_names) == MAX_LEVELS + 1
    new = pd.DataFrame({"c": ["v00", "v29", "once", "never"]})
    features = encode(frame, new)
    assert features["c = v00"] == [1, 0, 0, 0]
    assert features["c: other"] == [0, 1, 1, 1]
    assert "Column 'c': 11 rarer categories pooled as 'other', 20 kept." in encoder.describe()


def test_unseen_categories_are_said():
    remarks = table_remarks(TableEncoder.fit(CITIES), pd.DataFrame({"c": ["z", "x"]}))
    assert remarks == ["Column 'c' has values unknown from the fit: 'z'."]


def test_numbers_in_a_text_column_match_whatever_their_type():
    frame = pd.DataFrame({"c": ["7", "a", "7", "a"]})
    for new in ([7], [7.0], ["7"], [" 7 "]):
        assert encode(frame, pd.DataFrame({"c": new}))["c = 7"] == [1]


def test_dates_become_days_and_places_on_circles():
    frame = pd.DataFrame({"d": ["1970-01-02", "1970-01-05", None, "1970-07-03"]})
    features = encode(frame)
    assert features["d: days"] == [1, 4, 4, 183]
    assert features["d: missing"] == [0, 0, 1, 0]
    assert features["d: year sin"][2] == features["d: week cos"][2] == 0
    np.testing.assert_allclose(features["d: week cos"][1], 1)  # a Monday
    for circle in ("year", "week"):
        radius = np.hypot(features[f"d: {circle} sin"], features[f"d: {circle} cos"])
        np.testing.assert_allclose(radius, [1, 1, 0, 1])
    assert "d: day sin" not in features
    with_time = pd.DataFrame({"d": pd.to_datetime(["2020-01-01 06:00", "2020-01-02 18:00"])})
    np.testing.assert_allclose(encode(with_time)["d: day sin"], [1, -1])


def test_how_dates_are_read_is_said():
    frame = pd.DataFrame({"d": ["01/02/2020", "03/04/2020", "05/06/2020"], "e": ["01-02-2020 10:00"] * 2 + [None]})
    encoder = TableEncoder.fit(frame.assign(f=["2020 week 5", "2020 week 6", None]))
    said = encoder.describe()
    assert "Dates in 'd' read as month/day/year." in said
    assert "Dates in 'e' read as day-month-year." in said
    assert encoder.dropped["f"].endswith("(--date-format tells it), such as '2020 week 5'")


def test_what_is_missing_for_the_first_time_is_said():
    encoder = TableEncoder.fit(pd.DataFrame({"a": [1, 2, 3], "b": [1, None, 3]}))
    found = table_remarks(encoder, pd.DataFrame({"a": [1, None, None], "b": [None, None, 1]}))
    assert found == ["Missing here and never in the fit, so any of its values may be meant: 'a' (2)."]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([0, "b"], r"names of columns must be texts; got '0' .*rename\(columns=str\)"),
        (["a", "a"], "same name; rename 'a'"),
    ],
)
def test_names_must_be_texts_of_their_own(names, message):
    good = TableEncoder.fit(pd.DataFrame({"a": [1, 2], "b": [3, 4]}))
    frame = pd.DataFrame([[1, 2], [3, 4]], columns=names)
    for refused in (TableEncoder.fit, good.transform):
        with pytest.raises(TableError, match=message):
            refused(frame)


def test_columns_of_no_use_are_dropped_with_the_reason():
    frame = pd.DataFrame(
        {
            "x": [1.0, 2.0, 4.0],
            "empty": [None, None, None],
            "always": [3, 3, 3],
            "name": ["Ann", "Bob", "Cid"],
            "row_id": [11, 12, 13],
        }
    )
    encoder = TableEncoder.fit(frame)
    assert encoder.column_names == ["x"]
    assert encoder.dropped == {
        "empty": "it has no values",
        "always": "it is always '3'",
        "name": "its texts are all different, like identifiers",
        "row_id": "its numbers are all different, like row numbers",
    }
    assert "Column 'always' dropped: it is always '3'." in encoder.describe()


def test_nothing_left_is_an_error():
    with pytest.raises(TableError, match="no column is left to learn from: 'a' it has no values"):
        TableEncoder.fit(pd.DataFrame({"a": [None, None]}))
    with pytest.raises(TableError, match="there are no columns"):
        TableEncoder.fit(pd.DataFrame(index=range(3)))


def test_missing_columns_are_listed_and_extra_ones_ignored():
    encoder = TableEncoder.fit(pd.DataFrame({"a": [1, 2], "b": [3, 4]}))
    with pytest.raises(TableError, match="lacks 1 column that the model was fitted on: 'b'; it has 'a', 'c'"):
        encoder.transform(pd.DataFrame({"a": [1], "c": [2]}))
    more = pd.DataFrame({"c": [0], "b": [2], "a": [1]})
    assert encoder.transform(more).tolist() == [[1, 2]]
    assert table_remarks(encoder, more) == ["Not used by the model: 'c'."]
    assert table_remarks(encoder, more, target="c") == []


def test_the_messy_table():
    frame = houses()
    encoder = TableEncoder.fit(frame)
    expected = {"city": "category", "garden": "boolean", "sold": "date"}
    assert encoder.column_names == ["area", "city", "garden", "sold", "tax", "income", "price"]
    assert all(column.kind == expected.get(column.name, "number") for column in encoder.columns)
    assert list(encoder.dropped) == ["listing", "country", "empty"]
    assert encoder.features_of["area"] == ["area", "area: missing"]
    said = encoder.describe()
    assert said[0] == "Columns used: 7 (4 numbers, 1 category, 1 boolean, 1 date)."
    missing = "'area' (6), 'city' (5), 'price' (3)"
    assert f"Missing cells are marked, and predicted for what they may hold: {missing}." in said

    one = encoder.transform(frame.iloc[[3]].set_axis([99]))
    assert one.shape == (1, len(encoder.feature_names))
    again = TableEncoder.from_document(json.loads(json.dumps(encoder.to_document())))
    assert again == encoder
    assert np.array_equal(again.transform(frame), encoder.transform(frame))

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from messy import OPTIONS
from vmg.estimators import TableModel
from vmg.report import render_report
from vmg.review.remarks import table_remarks
from vmg.tables import TableEncoder, read_table
from vmg.tables.cells import Cells, to_texts
from vmg.tables.columns import DateColumn
from vmg.tables.dates import find_date_format, to_days, to_timestamps

FAR = ["0001-01-01", "1066-10-14", "1600-02-29", "1970-01-01", "2020-12-31", "2400-02-29", "9999-12-31"]


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["2020-01-31", None, "2020-02-01"], "ISO8601"),
        (["2020-01-31T10:30:00", "2020-02-01 11:00"], "ISO8601"),
        (["2020-01-31T10:30:00+02:00", "2020-02-01T00:00:00Z"], "ISO8601"),
        (["01/31/2020", "02/01/2020"], "%m/%d/%Y"),
        (["31/01/2020", "01/02/2020"], "%d/%m/%Y"),
        (["31.01.2020", "01.02.2020"], "%d.%m.%Y"),
        (["31 Jan 2020", "01 Feb 2020"], "%d %b %Y"),
        (["01/31/2020 10:30:59", "02/01/2020 00:00:00"], "%m/%d/%Y %H:%M:%S"),
        (["31.01.2020 10:30:59"], "%d.%m.%Y %H:%M:%S"),
        (["01/31/2020 10:30 PM"], "%m/%d/%Y %I:%M %p"),
        (["31-01-2020", "01-02-2020"], "%d-%m-%Y"),
        (["01-31-2020", "02-01-2020"], "%m-%d-%Y"),
        (["2020", "2021"], None),
        (["31/31/2020"], None),
        (["Paris", "Rome"], None),
        (["2020-01-31", "unknown"], None),
        ([None, None], None),
    ],
)
def test_dates_are_recognised(cells, expected):
    assert find_date_format(Cells(pd.Series(cells, dtype=object))) == expected


# -- years that nanoseconds do not reach ------------------------------------------------------------------------------


def reference_days(texts):
    """Python's own calendar."""
    from datetime import date

    return [date.fromisoformat(text).toordinal() - date(1970, 1, 1).toordinal() for text in texts]


@pytest.mark.parametrize("unit", ["s", "ms", "us"])
@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Paris", "America/New_York", "+05:30"])
def test_columns_of_moments_in_any_year_and_zone(unit, zone):
    column = pd.Series(np.array([*FAR, "NaT"], dtype=f"datetime64[{unit}]"), name="d")
    if zone is not None:
        column = column.dt.tz_localize("UTC").dt.tz_convert(zone)
    assert find_date_format(Cells(column)) == "ISO8601"
    np.testing.assert_array_equal(to_days(to_timestamps(Cells(column), "ISO8601")), [*reference_days(FAR), np.nan])
    assert to_texts(column).tolist() == [*(f"{day} 00:00:00" for day in FAR), None]
    encoder = TableEncoder.fit(column.to_frame())
    days = encoder.transform(column.to_frame())[:, encoder.feature_names.index("d: days")]
    np.testing.assert_array_equal(days[:-1], reference_days(FAR))
    assert not table_remarks(encoder, column.to_frame())
    arrow = column.astype(pd.ArrowDtype(pa.timestamp(unit, zone)))
    np.testing.assert_array_equal(encoder.transform(arrow.to_frame()), encoder.transform(column.to_frame()))
    assert to_texts(arrow).tolist() == to_texts(column).tolist()


@pytest.mark.parametrize(
    ("form", "written"),
    [
        ("ISO8601", lambda day: day),
        ("ISO8601", lambda day: f"{day}T00:00:00Z"),
        ("ISO8601", lambda day: f"{day}T02:00:00+02:00"),
        ("%d.%m.%Y", lambda day: ".".join(reversed(day.split("-")))),
        ("%m/%d/%Y %H:%M", lambda day: f"{day[5:7]}/{day[8:]}/{day[:4]} 00:00"),
    ],
)
def test_texts_of_any_year(form, written):
    column = pd.Series([*map(written, FAR), None], dtype=object)  # a zone is lost, but not the moment
    assert find_date_format(Cells(column)) == form
    np.testing.assert_array_equal(to_days(to_timestamps(Cells(column), form)), [*reference_days(FAR), np.nan])


def test_what_is_no_date_in_a_far_year_is_none():
    column = pd.Series(["9999-02-30", "3000-01-01"])
    assert np.isnat(to_timestamps(Cells(column), "ISO8601")).tolist() == [True, False]
    assert find_date_format(Cells(column)) is None


def test_places_in_year_and_week_are_those_of_pandas():
    moments = pd.Series(pd.date_range("1890-01-01", "2261-12-31", freq="37h"))
    days = to_days(to_timestamps(Cells(moments), "ISO8601"))
    turns = DateColumn("d", 0).circles(days)
    np.testing.assert_allclose(turns["year"] * 365.25, moments.dt.day_of_year)
    np.testing.assert_allclose(turns["week"] * 7, moments.dt.day_of_week)
    np.testing.assert_allclose(days, (moments - pd.Timestamp(0)) / pd.Timedelta(days=1), rtol=1e-15)


def test_far_dates_in_parquet_go_the_whole_way(tmp_path):
    rng = np.random.default_rng(0)
    days = rng.integers(-700_000, 2_900_000, size=40).astype("datetime64[D]").astype("datetime64[us]")
    moments = pd.Series(days).dt.tz_localize("UTC").dt.tz_convert("Europe/Paris")
    pd.DataFrame({"d": moments, "x": rng.random(40), "y": rng.random(40)}).to_parquet(tmp_path / "far.parquet")
    read = read_table(tmp_path / "far.parquet").frame
    model = TableModel.fit(read, "y", options=OPTIONS)
    dates = model.encoder.columns[0].values(Cells(read["d"]))
    np.testing.assert_array_equal(dates, days.astype("datetime64[D]").astype(int))
    assert np.isfinite(model.predict_frame(read)["y"]).all()
    assert str(days.max())[:10] in render_report(model, read)  # the largest, in the table of columns

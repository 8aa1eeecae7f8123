"""One reading for a whole file, kept with the model: decimal marks, dates, times, units, codes and identifiers."""

import numpy as np
import pandas as pd
import pytest

import vmg
from messy import OPTIONS
from vmg.estimators import TableModel
from vmg.estimators.table_estimator import split_flags
from vmg.estimators.table_model import prepare_table
from vmg.review.remarks import table_remarks
from vmg.tables import TableEncoder, TableError, read_table
from vmg.tables.cells import Cells
from vmg.tables.columns import DateColumn, NumberColumn, TableChoices, TimeColumn
from vmg.tables.dates import find_date_format
from vmg.tables.inputs import fit_target
from vmg.tables.numbers import count_comma_votes


def kinds(frame, **choices):
    encoder = TableEncoder.fit(frame, TableChoices(**choices))
    return {column.name: column for column in encoder.columns}, encoder


# -- decimal marks ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (lambda k: f"{k},2;{k},70{k % 10}", [[1.2, 1.701], [2.2, 2.702]]),  # and not 1,701
        (lambda k: f"{k},5;{k}.250", [[1.5, 1250], [2.5, 2250]]),  # dots between thousands are no decimal points
    ],
)
def test_a_file_has_one_decimal_mark(text_file, row, expected):
    frame = read_table(text_file("\n".join(["a;b", *map(row, range(1, 40))]))).frame
    _, encoder = kinds(frame)
    assert encoder.decimal_comma
    np.testing.assert_allclose(encoder.transform(frame)[:2], expected)


@pytest.mark.parametrize(("separator", "expected"), [(",", False), (";", True), ("\t", False)])
def test_where_cells_leave_it_open_the_separator_decides(text_file, separator, expected):
    rows = "".join(f'"{k},500"{separator}{k}\n' for k in range(1, 30))
    assert read_table(text_file(f"a{separator}b\n{rows}")).frame.attrs["decimal_comma"] is expected


def test_the_mark_of_the_fit_holds_at_prediction(text_file):
    rng = np.random.default_rng(0)
    a = rng.uniform(-3, 3, 60).round(3)
    fitted = read_table(text_file("a;y\n" + "".join(f"{v:.3f};{2 * v:.2f}\n".replace(".", ",") for v in a))).frame
    model = TableModel.fit(fitted, "y", options=OPTIONS)
    assert model.decimal_comma and model.encoder.decimal_comma
    one = {}
    for name, cells in {"both": "1,500;1\n-0,250;2\n", "alone": "1,500;1\n"}.items():
        path = text_file(f"a;key\n{cells}", f"{name}.csv")
        frame = read_table(path, **model.reading).frame
        one[name] = model.encoder.transform(frame)[0, 0]
    assert one == {"both": 1.5, "alone": 1.5}
    other = model.with_decimal(False)
    frame = read_table(text_file('a\n"1,500"\n', "point.csv"), decimal_comma=False).frame
    assert other.encoder.transform(frame)[0, 0] == 1500


def test_a_file_that_speaks_against_the_mark_is_said(text_file):
    path = text_file("a;b\n" + "".join(f"{k},25;x\n" for k in range(20)))
    _, notes = read_table(path, decimal_comma=False)
    assert any("'a' can only have decimal commas; --decimal , reads them so" in note for note in notes)


def test_votes_ask_only_columns_of_numbers():
    columns = {
        "comma": ["1,5", "2,25"],
        "point": ["1,234,567", "2"],
        "either": ["3,707"],
        "words": ["Paris, 5", "Rome"],
    }
    votes = count_comma_votes({name: Cells(pd.Series(cells)) for name, cells in columns.items()})
    assert votes == (["comma"], ["point"], ["either"])
    assert votes.decide(";") is True and votes.decide(",") is False


# -- dates and times -------------------------------------------------------------------------------------------------


def test_one_bad_cell_among_800_dates_is_missing_and_said():
    days = pd.date_range("2020-01-01", periods=799).strftime("%d/%m/%Y").tolist()
    frame = pd.DataFrame({"d": [*days, "soon"]})
    columns, encoder = kinds(frame)
    assert isinstance(columns["d"], DateColumn) and columns["d"].n_missing == 1
    said = encoder.describe()
    assert "Column 'd': not dates, so missing: 'soon'." in said and "Dates in 'd' read as day/month/year." in said


def test_other_columns_and_the_order_of_rows_settle_what_a_date_leaves_open():
    open_both = ["01/02/2021", "05/03/2021", "03/04/2021"]
    in_order = ["01/02/2021", "02/02/2021", "01/03/2021"]  # with the day first
    assert find_date_format(Cells(pd.Series(in_order))) == "%d/%m/%Y"
    assert find_date_format(Cells(pd.Series(open_both[::-1]))) == "%m/%d/%Y"
    one_row_far_down = ["05/06/2021"] * 500 + ["31/12/2021"]
    assert find_date_format(Cells(pd.Series(one_row_far_down))) == "%d/%m/%Y"
    columns, _ = kinds(pd.DataFrame({"a": open_both[::-1], "b": ["25/12/2020", "26/12/2020", "27/12/2020"]}))
    assert columns["a"].date_format == "%d/%m/%Y"


def test_an_unreadable_date_at_prediction_is_unknown_and_not_a_number_out_of_range():
    rng = np.random.default_rng(0)
    days = pd.Series(pd.Timestamp("2021-01-01") + pd.to_timedelta(rng.integers(0, 360, 200), "D"))
    y = 8 + 115 * days.dt.day_of_year / 365 + rng.normal(size=200)
    frame = pd.DataFrame({"d": days.dt.strftime("%d/%m/%Y"), "y": y})
    model = TableModel.fit(frame, "y", options={**OPTIONS, "max_iter": 100})
    found = model.predict_frame(pd.DataFrame({"d": ["12/31/2021", "15/06/2021", "31/12/2021"]}))
    assert split_flags(found["flags"].iloc[0]) == ["missing:d"]
    assert 0 < found["y"].iloc[0] < 130 and found["y_std"].iloc[0] > 3 * found["y_std"].iloc[1]
    assert found["y"].iloc[2] == pytest.approx(123, abs=25)


def test_compact_dates_and_times_of_day():
    frame = pd.DataFrame(
        {
            "d": [20210131, 20210228, 20211231] * 10,
            "t": ["14:30", "2:15 pm", "08:05:30"] * 10,
            "n": [20210131, 20219999, 20211231] * 10,
        }
    )
    columns, encoder = kinds(frame)
    assert isinstance(columns["d"], DateColumn) and columns["d"].date_format == "%Y%m%d"
    assert isinstance(columns["t"], TimeColumn) and isinstance(columns["n"], NumberColumn)
    hours = encoder.transform(frame)[:3, encoder.feature_names.index("t: hours")]
    np.testing.assert_allclose(hours, [14.5, 14.25, 8 + 5 / 60 + 30 / 3600])
    days = encoder.transform(frame)[:3, encoder.feature_names.index("d: days")]
    np.testing.assert_array_equal(days, (pd.to_datetime(frame["d"][:3].astype(str)) - pd.Timestamp(0)).dt.days)


def test_a_format_of_the_users_own():
    frame = pd.DataFrame({"x": range(30), "d": [f"{k % 28 + 1:02d}|03|21" for k in range(30)]})
    columns, _ = kinds(frame, types={"d": "date"}, date_formats={"d": "%d|%m|%y"})
    assert columns["d"].date_format == "%d|%m|%y"
    for wrong in ("%d/%m", "%Y" * 30, "%d/%d/%Y", "%q %Y"):
        with pytest.raises(TableError, match="a date format must be like"):
            TableChoices(date_formats={"d": wrong})
    with pytest.raises(TableError, match="'d' cannot be read as dates with the format %Y; got"):
        kinds(frame, types={"d": "date"}, date_formats={"d": "%Y"})


# -- units, brackets, codes ------------------------------------------------------------------------------------------


def test_amounts_in_brackets_units_and_percent():
    frame = pd.DataFrame(
        {
            "profit": ["(1,234)", "567", "(89)"] * 10,
            "distance": ["3.5 km", "4 km", "10.25km"] * 10,
            "rate": ["15%", "7.5 %", "20%"] * 10,
            "minus": ["−5", "6", "7"] * 10,
        }
    )
    columns, encoder = kinds(frame)
    assert {type(column) for column in columns.values()} == {NumberColumn}
    np.testing.assert_allclose(encoder.transform(frame)[:2], [[-1234, 3.5, 15, -5], [567, 4, 7.5, 6]])
    assert "Column 'distance' is in 'km'." in encoder.describe()


def test_a_target_in_brackets_is_a_number():
    cells = pd.Series([f"({k},{k:03d})" if k % 2 else f"{k},{k:03d}" for k in range(1, 97)], name="y")
    found = fit_target(Cells(cells), None, False)
    assert found.task == "regression" and found.values[0] == -1001 and found.values[1] == 2002


def test_a_change_of_unit_is_said_and_flagged():
    rng = np.random.default_rng(0)
    rate = rng.uniform(5, 40, 60).round()
    frame = pd.DataFrame({"rate": [f"{value:.0f}%" for value in rate], "y": rate + rng.normal(size=60)})
    model = TableModel.fit(frame, "y", options=OPTIONS)
    new = pd.DataFrame({"rate": rng.uniform(0.05, 0.4, 20)})
    remarks = " ".join(table_remarks(model.encoder, new))
    assert "Column 'rate' was written with '%' at the fit and with no unit here." in remarks
    assert "about 1/100 of it; was its unit changed?" in remarks
    assert all(split_flags(text) == ["outside:rate"] for text in model.predict_frame(new)["flags"])
    assert not table_remarks(model.encoder, frame, "y")


def test_codes_are_read_as_they_are_written_whatever_the_other_rows(text_file):
    rows = "".join(f"{code},{k % 7},{k}\n" for k, code in enumerate(["01", "1", "02", "10", "A1"] * 12))
    frame = read_table(text_file("code,x,y\n" + rows)).frame
    model = TableModel.fit(frame, "y", options=OPTIONS)
    path = text_file("code,x\n01,3\n02,3\n", "new.csv")
    assert read_table(path).frame["code"].tolist() == ["01", "02"]  # even alone: a zero in front makes a code
    path = text_file("code,x\n1,3\n10,3\n", "new.csv")
    new = read_table(path, **model.reading).frame
    assert new["code"].tolist() == ["1", "10"]
    assert not any("unseen" in text for text in model.predict_frame(new)["flags"])


def test_numbers_stay_numbers_whatever_the_other_rows(text_file):
    frame = read_table(text_file("a,y\n" + "".join(f"{k % 13},{k}\n" for k in range(60)))).frame
    model = TableModel.fit(frame, "y", options=OPTIONS)
    new = read_table(text_file("a\n01\n02\n", "new.csv"), **model.reading).frame
    np.testing.assert_array_equal(model.encoder.transform(new)[:, 0], [1, 2])


# -- many categories, identifiers, suspicions ------------------------------------------------------------------------


def cities(n_cities=60, each=13, seed=0):
    rng = np.random.default_rng(seed)
    effect = rng.normal(scale=3, size=n_cities)
    city = np.repeat(np.arange(n_cities), each)
    x = rng.normal(size=len(city))
    y = effect[city] + x + 0.5 * rng.normal(size=len(city))
    return pd.DataFrame({"city": [f"c{k:02d}" for k in city], "x": x, "y": y}).sample(frac=1, random_state=0)


def test_sixty_cities_of_thirteen_rows_each_count():
    frame = cities()
    fitted, held = frame.iloc[:600], frame.iloc[600:]
    model = TableModel.fit(fitted, "y", options={**OPTIONS, "max_iter": 150})
    assert any("60 categories" in note and "known by the target's mean" in note for note in model.notes)
    scores = model.evaluate(held)
    assert scores["rmse"] < 1.2  # pooling 40 of them left 2.4; the noise is 0.5, a city's mean is known to 0.3
    strange = model.predict_frame(held.assign(city="elsewhere"))
    known = model.predict_frame(held)
    assert (strange["y_ignorance"] > known["y_ignorance"]).mean() > 0.95
    assert strange["y_std"].median() > 2
    for frame in (fitted, held):
        pd.testing.assert_frame_equal(model.predict_frame(frame), model.predict_frame(frame))


def test_the_target_of_a_training_row_is_not_in_its_own_features():
    frame = cities(30, 4)
    y = frame["y"].to_numpy()[:, None] - frame["y"].mean()
    encoder = TableEncoder.fit(frame.drop(columns="y"))
    _, features = encoder.with_target(frame, y)
    other = y.copy()
    other[7] += 100
    fitted, moved = encoder.with_target(frame, other)
    place = fitted.feature_names.index("city: effect")
    assert features[7, place] == moved[7, place]
    assert (features[:, place] != moved[:, place]).any()


def test_effects_of_classes_survive_the_file(tmp_path):
    frame = cities(30, 6)
    frame["y"] = pd.cut(frame["y"], [-np.inf, -2, 2, np.inf], labels=["low", "mid", "high"]).astype(str)
    model = TableModel.fit(frame, "y", options=OPTIONS)
    assert len(model.encoder.features_of["city"]) == 3
    model.save(tmp_path / "m.vmg")
    assert vmg.load(tmp_path / "m.vmg").predict_frame(frame).equals(model.predict_frame(frame))


@pytest.mark.parametrize("name", ["customer_id", "orderId", "ID", "userid", "row"])
def test_identifiers_are_left_out_and_said(name):
    frame = pd.DataFrame({name: np.arange(60) * 7 % 61 + 1000, "x": np.arange(60) % 5})
    _, encoder = kinds(frame)
    assert name in encoder.dropped
    again = pd.DataFrame({name: np.r_[np.arange(50), np.arange(10)], "x": np.arange(60) % 5})
    assert name in kinds(again)[1].dropped
    assert name not in kinds(pd.DataFrame({name: np.arange(60) % 6, "x": np.arange(60) % 5}))[1].dropped


def notes_of(frame, **options):
    return " ".join(prepare_table(frame, "y", **options).notes)


def test_leaks_twins_and_slips_are_said():
    rng = np.random.default_rng(0)
    y = rng.normal(10, 2, 100)
    frame = pd.DataFrame({"x": rng.normal(size=100), "y_usd": 1.1 * y, "y": y})
    assert "'y_usd' alone tells the target 'y' almost exactly" in notes_of(frame)
    assert "tells the target" not in notes_of(frame[["x", "y"]])
    twins = frame[["x", "y"]].assign(same=frame["x"], inches=frame["x"] / 2.54)
    said = notes_of(twins)
    assert "Columns 'x' and 'same' say the same" in said and "Columns 'x' and 'inches' say the same" in said
    slip = frame[["x", "y"]].copy()
    slip.loc[17, "y"] = 1e12
    assert "The target 'y' has 1 value far from all others (1e+12); is it a slip?" in notes_of(slip)
    assert "far from all others" not in notes_of(frame[["x", "y"]])


def test_leaks_of_classes_are_said():
    label = np.array(["no", "yes"] * 30)
    frame = pd.DataFrame({"x": np.arange(60) % 7, "code": np.where(label == "yes", "A", "B"), "y": label})
    assert "'code' alone tells the target" in notes_of(frame)
    shifted = frame.assign(code=np.where(label == "yes", 5.0, 1.0) + np.arange(60) / 100)
    assert "'code' alone tells the target" in notes_of(shifted)
    assert "alone tells" not in notes_of(frame[["x", "y"]])


# -- what the user says ----------------------------------------------------------------------------------------------


def test_choices_are_kept_with_the_model(tmp_path):
    formats = {"sold": "%d/%m/%Y"}
    choices = TableChoices.of(categorical=["zip"], ignore=["note"], date_formats=formats, decimal=",")
    assert choices == TableChoices({"zip": "category", "note": "ignore"}, formats, decimal_comma=True)
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "zip": rng.choice([1000, 2000, 3000], 60),
            "note": rng.normal(size=60),
            "sold": [f"{k % 12 + 1:02d}/01/2021" for k in range(60)],
            "y": [f"{value:.2f}".replace(".", ",") for value in rng.normal(size=60)],
        }
    )
    model = TableModel.fit(frame, "y", choices=choices, options=OPTIONS)
    columns = {column.name: column for column in model.encoder.columns}
    assert set(columns) == {"zip", "sold"} and columns["zip"].kind == "category"
    model.save(tmp_path / "m.vmg")
    assert vmg.load(tmp_path / "m.vmg").choices == choices


def test_mistakes_in_choices():
    with pytest.raises(
        TableError, match="type of 'a' must be ignore or one of boolean, time, date, number, category; got 'colour'"
    ):
        TableChoices({"a": "colour"})
    with pytest.raises(TableError, match="decimal must be a point or a comma; got 5"):
        TableChoices.of(decimal=5)
    with pytest.raises(TableError, match="'x' cannot be read as dates; got 'red', 'blue'"):
        kinds(pd.DataFrame({"x": ["red", "blue"] * 10}), types={"x": "date"})


def test_tables_of_polars_and_arrow():
    pl, pa = pytest.importorskip("polars"), pytest.importorskip("pyarrow")
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=40), "c": rng.choice(["u", "v"], 40), "y": rng.normal(size=40)})
    expected = TableModel.fit(frame, "y", options=OPTIONS)
    predicted = expected.predict_frame(frame)
    for table in (pl.from_pandas(frame), pl.from_pandas(frame).lazy(), pa.Table.from_pandas(frame)):
        model = TableModel.fit(table, "y", options=OPTIONS)
        pd.testing.assert_frame_equal(model.predict_frame(table), predicted)
        assert model.evaluate(table) == expected.evaluate(frame)
    with pytest.raises(TableError, match="must be a data frame of pandas or Polars, or an Arrow table; got list"):
        TableModel.fit([[1]], "y")

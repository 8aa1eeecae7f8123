import re

import numpy as np
import pandas as pd
import pytest

from vmg.tables import TableEncoder, TableError
from vmg.tables.cells import Cells
from vmg.tables.columns import TableChoices
from vmg.tables.inputs import fit_target
from vmg.tables.numbers import has_decimal_commas, to_numbers

NAN, INF = float("nan"), float("inf")


def numbers(cells, **options):
    return to_numbers(Cells(pd.Series(cells, index=[7] * len(cells), dtype=object)), **options)


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["1", " 2.5 ", "-3e2", ".5", "+7."], [1, 2.5, -300, 0.5, 7]),
        (["1,234", "12", "1,234,567.5"], [1234, 12, 1234567.5]),
        (["12%", "3.5 %"], [12, 3.5]),
        (["$1,200", "-$3", "12 €"], [1200, -3, 12]),
        (["1 234", "1'234'567"], [1234, 1234567]),
        ([1, 2.5, None, "", "  "], [1, 2.5, NAN, NAN, NAN]),
        (["inf", "nan", "1e999", "-Infinity"], [INF, NAN, INF, -INF]),
    ],
    ids=["plain", "thousands", "percent", "currency", "spaces", "missing", "not finite"],
)
def test_numbers_as_people_write_them(cells, expected):
    np.testing.assert_array_equal(numbers(cells), expected)


@pytest.mark.parametrize(
    ("cells", "decimal", "expected"),
    [
        (["3,14", "2,5"], True, [3.14, 2.5]),
        (["1.234,5", "7"], True, [1234.5, 7]),
        (["1,234", "5,678"], False, [1234, 5678]),  # thousands unless a cell rules that out
        (["1,234", "5,67"], True, [1.234, 5.67]),
        (["1,234.5", "5,67"], False, [1234.5, NAN]),
        (["0,125", "1,375", "2"], True, [0.125, 1.375, 2]),  # no thousands begin with a zero
        (["12,5", "1.234", "-1.234.567"], True, [12.5, 1234, -1234567]),
    ],
)
def test_what_a_comma_means_is_found_out_for_the_whole_column(cells, decimal, expected):
    assert has_decimal_commas(Cells(pd.Series(cells, dtype=object))) is decimal
    np.testing.assert_array_equal(numbers(cells), expected)


def test_a_decision_about_commas_is_kept():
    np.testing.assert_array_equal(numbers(["1,234"], decimal_comma=True), [1.234])


@pytest.mark.parametrize("dtype", ["int64", "float32", "Int64", "bool", "boolean"])
def test_columns_of_numbers_pass(dtype):
    found = to_numbers(Cells(pd.Series([1, 0, 1], index=[7, 7, 7], dtype=dtype)))
    assert found.dtype == np.float64 and found.tolist() == [1.0, 0.0, 1.0]
    np.testing.assert_array_equal(to_numbers(Cells(pd.Series([1, None], dtype="Int64"))), [1, NAN])


# -- units and signs -------------------------------------------------------------------------------------------------


def fitted(cells, name="a"):
    encoder = TableEncoder.fit(pd.DataFrame({name: cells, "x": range(len(cells))}))
    return encoder, {column.name: column for column in encoder.columns}


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        (["79.9%", "0.799"] * 10, "'%', 'no sign'"),
        (["12 €", "$13"] * 10, "'$', '€'"),
        (["12 €", "$13", "14"] * 10, "'$', '€'"),
        (["3.5 km", "300 m"] * 10, "'km', 'm'"),
    ],
)
def test_signs_that_mean_different_units_are_not_one_column(cells, said):
    encoder, _ = fitted(cells)
    assert f"in several units, {said}; write them in one (--categorical" in encoder.dropped["a"]
    frame, choices = pd.DataFrame({"a": cells}), TableChoices(types={"a": "category"})
    assert TableEncoder.fit(frame, choices).columns[0].kind == "category"
    with pytest.raises(TableError, match=f"the target 'a' is in several units, {re.escape(said)}"):
        fit_target(Cells(pd.Series(cells, name="a")))


def test_a_few_numbers_in_another_unit_are_missing_and_reported():
    percents, dollars, ways = ([form.format(k) for k in range(29)] for form in ("{}.5%", "${}", "{} km"))
    for cells, unit in (([*percents, "0.799"], "%"), ([*dollars, "5 €"], "$"), ([*ways, "300 m"], "km")):
        encoder, columns = fitted(cells)
        assert columns["a"].unit == unit and columns["a"].n_missing == 1
        assert f"Column 'a': not numbers, so missing: '{cells[-1]}'." in encoder.describe()
    _, columns = fitted([*percents, "0"])
    assert columns["a"].n_missing == 0  # nothing is nothing in any unit


def test_a_currency_may_be_left_out_and_another_one_is_not_taken_for_it():
    encoder, columns = fitted([f"${k}" for k in range(20)] + [str(k) for k in range(10)])
    assert columns["a"].unit == "$" and columns["a"].n_missing == 0
    marks = encoder.marks(pd.DataFrame({"a": ["7", "$7", "7 €", "7 km"], "x": 1}))[0]
    assert marks["missing"].tolist() == [False, False, True, True]


def test_digits_of_other_scripts():
    np.testing.assert_array_equal(numbers(["٣", "४٥", "1"]), [3, 45, 1])

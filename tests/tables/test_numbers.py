import numpy as np
import pandas as pd
import pytest

from vmg.tables.cells import to_texts
from vmg.tables.numbers import to_numbers

NAN = float("nan")


def numbers(cells, **options):
    return to_numbers(pd.Series(cells, dtype=object), **options)


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["1", " 2.5 ", "-3e2", ".5", "+7."], [1, 2.5, -300, 0.5, 7]),
        (["1,234", "12", "1,234,567.5"], [1234, 12, 1234567.5]),
        (["12%", "3.5 %"], [12, 3.5]),
        (["$1,200", "-$3", "12 €"], [1200, -3, 12]),
        (["1 234", "1'234'567"], [1234, 1234567]),
        ([1, 2.5, None, "", "  "], [1, 2.5, NAN, NAN, NAN]),
        (["inf", "nan", "1e999"], [NAN, NAN, NAN]),
    ],
    ids=["plain", "thousands", "percent", "currency", "spaces", "missing", "not finite"],
)
def test_numbers_as_people_write_them(cells, expected):
    np.testing.assert_array_equal(numbers(cells).values, expected)


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
    found = numbers(cells)
    assert found.decimal_comma is decimal
    np.testing.assert_array_equal(found.values, expected)


def test_a_decision_about_commas_is_kept():
    np.testing.assert_array_equal(numbers(["1,234"], decimal_comma=True).values, [1.234])


def test_what_is_not_a_number_is_named():
    assert numbers(["1", "old", "2", "new", "old"]).not_numbers == ["new", "old"]


@pytest.mark.parametrize("dtype", ["int64", "float32", "Int64", "bool", "boolean"])
def test_columns_of_numbers_pass(dtype):
    found = to_numbers(pd.Series([1, 0, 1], dtype=dtype))
    assert found.values.dtype == np.float64
    assert found.values.tolist() == [1.0, 0.0, 1.0]


def test_missing_values_of_nullable_columns():
    np.testing.assert_array_equal(to_numbers(pd.Series([1, None], dtype="Int64")).values, [1, NAN])


def test_repeated_row_labels_do_no_harm():
    column = pd.Series(["1", "x", "3"], index=[7, 7, 7])
    np.testing.assert_array_equal(to_numbers(column).values, [1, NAN, 3])


def test_texts_do_not_change_with_holes_in_a_column():
    assert to_texts(pd.Series([1, 2])).tolist() == ["1", "2"]
    assert to_texts(pd.Series([1, None])).tolist() == ["1", None]
    assert to_texts(pd.Series([" a ", "", None, 1.5], dtype=object)).tolist() == ["a", None, None, "1.5"]

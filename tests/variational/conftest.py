import pytest

from quick import linear_table, regressor


@pytest.fixture(scope="session")
def fitted():
    X, y = linear_table()
    return regressor().fit(X, y)


@pytest.fixture(scope="session")
def fitted_to_two():
    X, y = linear_table(n_outputs=2)
    return regressor().fit(X, y)

import pytest
from parquet_parts import make_frame

from vmg.estimators import TableModel


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """A small model of y, by its path."""
    path = tmp_path_factory.mktemp("model") / "small.vmg"
    options = {"n_members": 2, "hidden_layer_sizes": (8,), "max_iter": 20, "random_state": 0}
    TableModel.fit(make_frame(120, seed=9), "y", exclude=["key"], options=options).save(path)
    return path

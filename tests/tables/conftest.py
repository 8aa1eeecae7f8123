import pytest


@pytest.fixture
def text_file(tmp_path):
    """Write a text as a file."""

    def make(text, name="table.csv"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return make

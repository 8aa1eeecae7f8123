import hashlib
from pathlib import Path

import numpy as np
import pytest

from vmg_paper.data.download import cache_folder, check_content, download, fetch_file, find_file, write_whole

CONTENT = b"some bytes\n" * 1000
SHA256 = hashlib.sha256(CONTENT).hexdigest()


def put(file: Path, content: bytes = CONTENT) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    return file


def test_the_data_folder_comes_before_the_cache(cache, tmp_path, monkeypatch):
    in_cache = put(cache / "set/file.gz")
    monkeypatch.setenv("VMG_DATA", str(tmp_path / "data"))
    assert find_file("set/file.gz") == in_cache
    in_folder = put(tmp_path / "data/set/file.gz")
    assert find_file("set/file.gz") == in_folder
    assert find_file("set/other.gz") is None


def test_the_cache_is_poochs_folder_for_vmg():
    assert "vmg" in cache_folder().parts


def test_downloads_once_into_the_cache(cache, server):
    address, served = server
    put(served / "file.bin")
    file = fetch_file("set/file.bin", f"{address}/file.bin", SHA256)
    assert file == cache / "set/file.bin"
    assert file.read_bytes() == CONTENT
    (served / "file.bin").unlink()
    assert fetch_file("set/file.bin", f"{address}/file.bin", SHA256) == file


def test_a_download_with_another_checksum_is_refused_and_not_kept(cache, server):
    address, served = server
    put(served / "file.bin", b"something else")
    with pytest.raises(ValueError, match=f"expected SHA-256 {SHA256}; got .* \\(14 bytes\\)"):
        fetch_file("set/file.bin", f"{address}/file.bin", SHA256)
    assert list((cache / "set").iterdir()) == []


def test_a_damaged_local_copy_is_refused(cache):
    file = put(cache / "set/file.bin", CONTENT[:-1])
    with pytest.raises(ValueError, match="is damaged or another file") as caught:
        fetch_file("set/file.bin", "http://127.0.0.1:9/file.bin", SHA256)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize("reachable", [True, False])
def test_a_failed_download_says_what_to_do(cache, server, reachable):
    address = server[0] if reachable else "http://127.0.0.1:9"  # port 9: nothing listens
    with pytest.raises(ConnectionError) as caught:
        fetch_file("set/file.bin", f"{address}/missing.bin", SHA256)
    message = str(caught.value)
    assert f"could not download {address}/missing.bin" in message
    assert "set VMG_DATA to a folder that holds set/file.bin" in message
    assert f"put that file at {cache / 'set/file.bin'}" in message
    assert "try again online" in message
    assert list((cache / "set").iterdir()) == []


def test_without_pooch_the_data_folder_works_and_the_rest_says_what_to_install(no_pooch, tmp_path, monkeypatch):
    monkeypatch.setenv("VMG_DATA", str(tmp_path))
    put(tmp_path / "set/file.bin")
    assert fetch_file("set/file.bin", "http://127.0.0.1:9/file.bin", SHA256) == tmp_path / "set/file.bin"
    with pytest.raises(ImportError, match=r"pip install vmg\[app\]"):
        find_file("set/other.bin")
    with pytest.raises(ImportError, match=r"pip install vmg\[app\]"):
        download("http://127.0.0.1:9/file.bin", tmp_path / "file.bin", wanted="set/file.bin")


def test_a_file_appears_whole_or_not_at_all(tmp_path):
    target = tmp_path / "folder/values.csv.gz"
    with pytest.raises(RuntimeError), write_whole(target) as unfinished:  # noqa: PT012 - the block is what fails
        unfinished.write_bytes(b"half")
        raise RuntimeError
    assert list(target.parent.iterdir()) == []
    with write_whole(target) as unfinished:
        unfinished.write_bytes(b"whole")
        assert unfinished.suffix == ".gz"
        assert not target.exists()
    assert target.read_bytes() == b"whole"
    assert list(target.parent.iterdir()) == [target]


def test_content_is_compared_by_value_and_not_by_memory_layout():
    values = np.arange(6.0).reshape(2, 3)
    sha256 = hashlib.sha256(values.astype("<f8").tobytes()).hexdigest()
    check_content(np.asfortranarray(values), sha256, origin="here")
    check_content(values.astype(">f8"), sha256, origin="here")
    with pytest.raises(ValueError, match=r"here does not hold the known values.*got shape \(3, 2\)"):
        check_content(values.T, sha256, origin="here")

import json
import os
import pickle
import subprocess
import sys
import textwrap

import pytest
import torch
from safetensors.torch import save

from vmg import model_file
from vmg.files import replacing
from vmg.model_file import ModelFileError, read, write

DOCUMENT = {"holds": "something", "names": ["a", "ü"], "half": 0.1, "nothing": None}


@pytest.fixture
def tensors():
    return {
        "matrix": torch.randn(3, 4).T,  # not contiguous
        "double": torch.randn(5, dtype=torch.float64),
        "count": torch.tensor(7),
        "flags": torch.tensor([True, False]),
        "shared": torch.ones(1).expand(1, 3),
        "empty": torch.zeros(0, 2),
    }


@pytest.fixture
def file(tmp_path, tensors):
    path = tmp_path / "model.vmg"
    write(path, tensors, DOCUMENT)
    return path


def test_what_is_written_comes_back_to_the_last_bit(file, tensors):
    found, document = read(file)
    assert {name: document[name] for name in DOCUMENT} == DOCUMENT
    assert document["format"] == "vmg" and document["version"] == model_file.FORMAT_VERSION
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor)


def test_the_file_is_plain_safetensors(file):
    from safetensors import safe_open

    with safe_open(file, framework="pt") as opened:
        assert json.loads(opened.metadata()["vmg"])["holds"] == "something"


def test_missing_file(tmp_path):
    with pytest.raises(ModelFileError, match="there is no file"):
        read(tmp_path / "none.vmg")
    with pytest.raises(ModelFileError, match="cannot read"):
        read(tmp_path)


def test_a_file_cut_anywhere_is_refused(file):
    whole = file.read_bytes()
    for length in range(0, len(whole), 7):
        file.write_bytes(whole[:length])
        with pytest.raises(ModelFileError, match=r"empty|truncated|not a vmg model"):
            read(file)
    file.write_bytes(whole[:-1])
    with pytest.raises(ModelFileError, match="truncated or damaged"):
        read(file)


def test_every_changed_byte_is_noticed(file):
    whole = file.read_bytes()
    for position in range(0, len(whole), 3):
        changed = bytearray(whole)
        changed[position] ^= 1
        file.write_bytes(bytes(changed))
        with pytest.raises(ModelFileError):
            read(file)


def test_tampering_with_numbers_or_document_is_named(file):
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(ModelFileError, match="was changed after it was written"):
        read(file)
    assert b"something" in whole
    file.write_bytes(whole.replace(b"something", b"somewhere"))
    with pytest.raises(ModelFileError, match="was changed after it was written"):
        read(file)


@pytest.mark.parametrize(
    "contents",
    [
        b"a,b\n1,2\n",
        b"\x89PNG\r\n\x1a\n" + bytes(100),
        pickle.dumps({"a": 1}),
        save({"a": torch.ones(2)}),
        save({"a": torch.ones(2)}, metadata={"other": "library"}),
        save({"a": torch.ones(2)}, metadata={"vmg": "[]"}),
        b"x",
    ],
    ids=["csv", "png", "pickle", "safetensors", "foreign metadata", "foreign document", "one byte"],
)
def test_foreign_files(tmp_path, contents):
    path = tmp_path / "foreign"
    path.write_bytes(contents)
    with pytest.raises(ModelFileError, match="is not a vmg model"):
        read(path)


def test_a_newer_version_says_to_upgrade(tmp_path, monkeypatch):
    path = tmp_path / "new.vmg"
    with monkeypatch.context() as future:
        future.setattr(model_file, "FORMAT_VERSION", model_file.FORMAT_VERSION + 1)
        write(path, {}, {"holds": "something"})
    with pytest.raises(ModelFileError, match=r"was written by a newer vmg .* upgrade"):
        read(path)


def test_an_error_while_writing_leaves_the_old_file_and_nothing_else(file):
    before = file.read_bytes()

    def fail():
        with replacing(file) as temporary:
            temporary.write_bytes(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert file.read_bytes() == before
    assert os.listdir(file.parent) == [file.name]


def test_a_kill_while_writing_leaves_the_old_file_whole(file):
    before = file.read_bytes()
    program = """
        import os, signal, sys
        import vmg.model_file as model_file
        model_file.os.replace = lambda *paths: os.kill(os.getpid(), signal.SIGKILL)
        model_file.write(sys.argv[1], {}, {"holds": "another"})
    """
    killed = subprocess.run([sys.executable, "-c", textwrap.dedent(program), str(file)], check=False)
    assert killed.returncode == -9
    assert file.read_bytes() == before
    assert read(file)[1]["holds"] == "something"


def test_unwritable_places(tmp_path):
    with pytest.raises(ModelFileError, match=r"cannot write .*nowhere"):
        write(tmp_path / "nowhere" / "model.vmg", {}, {"holds": "something"})
    with pytest.raises(ModelFileError, match="cannot write"):
        write(tmp_path, {}, {"holds": "something"})

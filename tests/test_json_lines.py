"""Results as JSON lines: what is told is on disk, whatever is killed."""

import json
import os
import random
import signal
import subprocess
import sys
import textwrap

import pytest

from vmg.files import append_lines, read_lines


@pytest.fixture
def path(tmp_path):
    return tmp_path / "deep" / "results.jsonl"


def test_what_is_appended_is_read(path):
    assert read_lines(path) == []
    append_lines(path, [{"a": 1}, {"b": "ü"}])
    append_lines(path, [])
    append_lines(path, [{"c": None}])
    assert read_lines(path) == [{"a": 1}, {"b": "ü"}, {"c": None}]


@pytest.mark.parametrize("torn", [b'{"b": 2', b"{", b'{"b": "\xc3', b'{"b": 2}\x00'])
def test_a_line_cut_short_is_left_out_and_cut_off(path, torn):
    append_lines(path, [{"a": 1}])
    with path.open("ab") as file:
        file.write(torn)
    assert read_lines(path) == [{"a": 1}]
    append_lines(path, [{"c": 3}])
    assert path.read_bytes() == b'{"a": 1}\n{"c": 3}\n'


def test_a_last_record_without_its_newline_is_kept(path):
    append_lines(path, [{"a": 1}])
    with path.open("ab") as file:
        file.write(b'{"b": 2}')
    assert read_lines(path) == [{"a": 1}, {"b": 2}]
    append_lines(path, [{"c": 3}])
    assert read_lines(path) == [{"a": 1}, {"b": 2}, {"c": 3}]


def test_a_file_of_one_long_torn_line(path):
    path.parent.mkdir()
    path.write_bytes(b'{"a": "' + b"x" * 200_000)
    append_lines(path, [{"b": 2}])
    assert path.read_bytes() == b'{"b": 2}\n'


def test_whole_lines_are_never_written_again(path, monkeypatch):
    append_lines(path, [{"a": 1}])
    with path.open("ab") as file:
        file.write(b'{"b"')
    written = []
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, place: written.append(place) or real(fd, data, place))
    append_lines(path, [{"c": 3}])
    assert written == [len(b'{"a": 1}\n')]


def test_a_full_disk_leaves_the_file_as_it_was(path, monkeypatch):
    append_lines(path, [{"a": 1}])
    before = path.read_bytes()
    real = os.pwrite

    def fill(descriptor, data, place):
        if place == len(before):
            return real(descriptor, data[:5], place)
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(os, "pwrite", fill)
        with pytest.raises(OSError, match="No space left"):
            append_lines(path, [{"b": 2}])
    assert path.read_bytes() == before


def test_what_is_on_a_line_in_the_middle_and_no_record_is_named(path):
    append_lines(path, [{"a": 1}])
    path.write_bytes(path.read_bytes() + b"nonsense\n" + b'{"b": 2}\n')
    with pytest.raises(ValueError, match="line 2 is not a JSON object"):
        read_lines(path)


WRITER = """
    import sys
    from pathlib import Path
    from vmg.files import append_lines, read_lines
    path, name = Path(sys.argv[1]), sys.argv[2]
    for number in range(10_000):
        append_lines(path, [{"writer": name, "number": number, "filling": "x" * (number % 7_000)}])
        print(number, flush=True)
"""


def test_no_record_is_lost_to_kills_and_two_writers(path):
    """What a writer has told is there after any kill, in order, and nothing in between is torn."""
    rng = random.Random(0)
    command = [sys.executable, "-c", textwrap.dedent(WRITER), str(path)]
    told: dict[str, int] = {}
    for trial in range(2):
        writers = [(f"{trial}{k}", subprocess.Popen([*command, f"{trial}{k}"], stdout=subprocess.PIPE)) for k in "ab"]
        for name, writer in writers:
            for _ in range(rng.randrange(20, 200)):
                told[name] = int(writer.stdout.readline())
        for name, writer in writers:
            writer.send_signal(signal.SIGKILL)
            rest = writer.communicate()[0].split(b"\n")[:-1]
            told[name] = int(rest[-1]) if rest else told[name]
    append_lines(path, [{"writer": "end", "number": 0}])
    assert all(isinstance(json.loads(line), dict) for line in path.read_text().splitlines())
    found = read_lines(path)
    for name, last in told.items():
        numbers = [record["number"] for record in found if record["writer"] == name]
        assert numbers == list(range(len(numbers))) and len(numbers) in (last + 1, last + 2)
